#!/bin/sh
# A node: containerd and kubelet, as the first process of namespaces of their own (node.py).
# Lines on standard input steer it: `join HOST NODE PODS PORT SERVICE`; the end of the input, however it comes, ends all.
set -eu
folder=$1 containerd=$2 kubelet=$3

# Where the programs of a node expect to write is the node's own; all of these mounts end with the namespace.
mount --make-rshared /
for place in run lib log; do mkdir -p "$folder/$place"; done
mount --bind "$folder/run" /run
mount --bind "$folder/lib" /var/lib
mount --bind "$folder/log" /var/log
echo ready

exec 3<&0
read -r _ host node pods port service
ip link set lo up
ip link set eth0 up
ip addr add "$node/30" dev eth0
ip route add default via "$host"
echo 1 >/proc/sys/net/ipv4/ip_forward
iptables -t nat -A POSTROUTING -s "$pods" ! -d "$pods" -j MASQUERADE
for chain in PREROUTING OUTPUT; do # the API server as pods know it; there is no kube-proxy
    iptables -t nat -A "$chain" -d "$service" -p tcp --dport 443 -j DNAT --to "$host:$port"
done

trap 'exit 0' TERM
{ read -r _ <&3 || true; kill -TERM 1; } &
"$containerd" --config "$folder/containerd.toml" >>"$folder/containerd.log" 2>&1 &
until ctr version >/dev/null 2>&1; do sleep 0.1; done
for image in "$folder"/images/*.tar; do
    ctr -n k8s.io images import "$image" >>"$folder/images.log" 2>&1
done
"$kubelet" --config "$folder/kubelet.json" --kubeconfig "$folder/kubeconfig" --hostname-override n1 \
    --node-ip "$node" --root-dir /var/lib/kubelet >>"$folder/kubelet.log" 2>&1 &
wait

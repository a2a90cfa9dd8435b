#!/bin/sh
# A node: containerd and kubelet, as the first process of namespaces of their own (node.py).
# A line on standard input steers it: `join SERVER PORT SERVICE ADDRESS PODS ALL-PODS PEER-PODS=PEER…`.
# The end of the input, however it comes, ends all.
set -eu
folder=$1 containerd=$2 kubelet=$3 name=$4

# Where the programs of a node expect to write is the node's own; all of these mounts end with the namespace.
mount --make-rshared /
for place in run lib log; do mkdir -p "$folder/$place"; done
mount --bind "$folder/run" /run
mount --bind "$folder/lib" /var/lib
mount --bind "$folder/log" /var/log
echo "$name" >/proc/sys/kernel/hostname
echo ready

exec 3<&0
read -r _ server port service address pods all ways
ip link set lo up
ip link set eth0 up
ip addr add "$address/24" dev eth0
ip route add default via "$server"
for way in $ways; do ip route add "${way%=*}" via "${way#*=}"; done
echo 1 >/proc/sys/net/ipv4/ip_forward
iptables -t nat -A POSTROUTING -s "$pods" ! -d "$all" -j MASQUERADE
for chain in PREROUTING OUTPUT; do # the API server as pods know it; there is no kube-proxy
    iptables -t nat -A "$chain" -d "$service" -p tcp --dport 443 -j DNAT --to "$server:$port"
done

trap 'exit 0' TERM
{ read -r _ <&3 || true; kill -TERM 1; } &
"$containerd" --config "$folder/containerd.toml" >>"$folder/containerd.log" 2>&1 &
until ctr version >/dev/null 2>&1; do sleep 0.1; done
for image in "$folder"/images/*.tar; do # a disk that was there before has them
    [ -e /var/lib/imported ] || ctr -n k8s.io images import "$image" >>"$folder/images.log" 2>&1
done
touch /var/lib/imported
"$kubelet" --config "$folder/kubelet.json" --kubeconfig "$folder/kubeconfig" --hostname-override "$name" \
    --node-ip "$address" --root-dir /var/lib/kubelet >>"$folder/kubelet.log" 2>&1 &
wait

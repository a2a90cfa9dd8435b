// In place of Prometheus' own list (tests/infra/gotools.py): what a cluster needs. All others would take minutes to build.

package plugins

import _ "github.com/prometheus/prometheus/discovery/kubernetes"

// Command fairlead-cni is the CNI plugin that redirects the traffic of Pods with a sidecar. "node-agent cni" installs
// it on the node. It is a program of its own because the runtime starts it for every Pod.
package main

import "fairlead.dev/services/node-agent/internal/cni/plugin"

func main() { plugin.Main() }

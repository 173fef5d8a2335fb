// Command fairlead-keeper writes into Kubernetes' webhook configurations what API servers need to call the mesh's
// webhooks, and gives config-watcher its rights in single namespaces. Nothing can talk to it.
package main

import (
	"github.com/spf13/cobra"

	"fairlead.dev/pkg/service"
	"fairlead.dev/services/installer/internal/keeper"
)

func main() { service.Main(command()) }

func command() *cobra.Command {
	return service.Command(&cobra.Command{
		Use:   "fairlead-keeper --root-cert-file FILE",
		Short: "Keep the webhook configurations of the mesh, and config-watcher's rights",
		Long: "fairlead-keeper keeps the mesh's roots in the webhook configurations that it is told of by name, and has API servers insist on " +
			"the\n" +
			"validating webhook once that answers. Whoever may change a webhook configuration decides about everything in the cluster, so no " +
			"process\n" +
			"that others can talk to has that right, and this one listens on no port. For the same reason it is the one that gives config-watcher " +
			"the right to\n" +
			"read Secrets where a gateway needs one, and to write WorkloadEntries where a WorkloadGroup is.\n\n" +
			"Exit codes: 0 stopped when asked to, 1 failed at run time, 2 wrong flags.",
	}, &keeper.Options{}, keeper.Open)
}

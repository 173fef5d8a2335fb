// Command fairlead-injector gives Pods their sidecar when they are made: it is a mutating webhook of Kubernetes.
package main

import (
	"github.com/spf13/cobra"

	"fairlead.dev/pkg/service"
	"fairlead.dev/services/installer/internal/injector"
)

func main() { service.Main(command()) }

func command() *cobra.Command {
	return service.Command(&cobra.Command{
		Use:   "fairlead-injector --ca-address HOST:PORT --root-cert-file FILE",
		Short: "Give Pods their sidecar",
		Long: "fairlead-injector answers the API server's question what a Pod is to be like, by the ConfigMap istio-sidecar-injector and the " +
			"mesh's\n" +
			"settings. No running Pod needs it.\n\n" +
			"Exit codes: 0 stopped when asked to, 1 failed at run time, 2 wrong flags. A broken ConfigMap never ends the process: it is reported " +
			"in\n" +
			"the log and in metrics, and the last good one stays in force.",
	}, &injector.Options{}, injector.Open)
}

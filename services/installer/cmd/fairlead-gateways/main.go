// Command fairlead-gateways makes what Gateways of Kubernetes' Gateway API need: service accounts, Deployments,
// Services.
package main

import (
	"github.com/spf13/cobra"

	"fairlead.dev/pkg/service"
	"fairlead.dev/services/installer/internal/gateways"
)

func main() { service.Main(command()) }

func command() *cobra.Command {
	return service.Command(&cobra.Command{
		Use:   "fairlead-gateways --values-file FILE",
		Short: "Make what Gateways of the Gateway API need",
		Long: "fairlead-gateways makes a service account, a Deployment and a Service for each Gateway of Kubernetes' Gateway API whose class\n" +
			"is of controller istio.io/gateway-controller or fairlead.dev/gateway-controller, and if asked an autoscaler and a budget. Of\n" +
			"several replicas one works, which holds a lease. Gateways that run never need it.\n\n" +
			"Exit codes: 0 stopped when asked to, 1 failed at run time, 2 wrong flags.",
	}, &gateways.Options{}, gateways.Open)
}

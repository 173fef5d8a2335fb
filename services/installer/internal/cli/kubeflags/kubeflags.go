// Package kubeflags has the flags that name an API server, in istioctl's names.
package kubeflags

import (
	"context"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/complete"
	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/kube"
)

// Cluster are the flags that name an API server and the control plane in it, in istioctl's names.
type Cluster struct {
	kube.Config
	// IstioNamespace is the control plane's.
	IstioNamespace string
}

// DefaultIstioNamespace is where a control plane runs unless a flag or a setting says another.
const DefaultIstioNamespace = "istio-system"

// Add adds the flags.
func (f *Cluster) Add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVarP(&f.Kubeconfig, "kubeconfig", "c", "", "kubeconfig file, as of kubectl")
	fs.StringVar(&f.Context, "context", "", "context of the kubeconfig file")
	fs.StringVar(&f.As, "as", "", "user to impersonate")
	fs.StringArrayVar(&f.AsGroups, "as-group", nil, "group to impersonate; may be repeated")
	fs.StringVarP(&f.IstioNamespace, "istioNamespace", "i", DefaultIstioNamespace, "namespace of the control plane")
	fs.DurationVar(&f.Timeout, "kubeclient-timeout", kube.RequestTimeout, "how long one request to the API server may take")
	_ = cmd.RegisterFlagCompletionFunc("context", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return f.Contexts(), cobra.ShellCompDirectiveNoFileComp
	})
	CompleteNamespaces(cmd, f, "istioNamespace")
	_ = cmd.MarkFlagFilename("kubeconfig")
}

// CompleteNamespaces completes a flag by the namespaces of the API server.
func CompleteNamespaces(cmd *cobra.Command, f *Cluster, flag string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, f.Complete(kube.Namespaces))
}

// Complete completes by what an API server has.
func (f *Cluster) Complete(names func(ctx context.Context, api kube.API) []string) complete.Func {
	return complete.Names(func(cmd *cobra.Command, _ []string) []string {
		api, err := f.API()
		if err != nil {
			return nil
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), complete.Timeout)
		defer cancel()
		return names(ctx, api)
	})
}

// Connect returns the connection of the engine that installs.
func (f *Cluster) Connect() (*cluster.Client, error) {
	config, err := f.Rest()
	if err != nil {
		return nil, process.Usage(err)
	}
	return cluster.Connect(config)
}

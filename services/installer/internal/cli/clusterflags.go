package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/kube"
)

// clusterFlags are the flags that name an API server and the control plane in it, in istioctl's names.
type clusterFlags struct {
	kube.Config
	// istioNamespace is the control plane's.
	istioNamespace string
}

// defaultIstioNamespace is where a control plane runs unless a flag or a setting says another.
const defaultIstioNamespace = "istio-system"

func (f *clusterFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVarP(&f.Kubeconfig, "kubeconfig", "c", "", "kubeconfig file, as of kubectl")
	fs.StringVar(&f.Context, "context", "", "context of the kubeconfig file")
	fs.StringVar(&f.As, "as", "", "user to impersonate")
	fs.StringArrayVar(&f.AsGroups, "as-group", nil, "group to impersonate; may be repeated")
	fs.StringVarP(&f.istioNamespace, "istioNamespace", "i", defaultIstioNamespace, "namespace of the control plane")
	fs.DurationVar(&f.Timeout, "kubeclient-timeout", kube.RequestTimeout, "how long one request to the API server may take")
	_ = cmd.RegisterFlagCompletionFunc("context", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return f.Contexts(), cobra.ShellCompDirectiveNoFileComp
	})
	completeKubeNamespaces(cmd, f, "istioNamespace")
	_ = cmd.MarkFlagFilename("kubeconfig")
}

// completeKubeNamespaces completes a flag by the namespaces of the API server.
func completeKubeNamespaces(cmd *cobra.Command, f *clusterFlags, flag string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, f.complete(func(ctx context.Context, api kube.API) []string {
		list, err := api.CoreV1().Namespaces().List(ctx, metav1.ListOptions{Limit: kube.Page})
		if err != nil {
			return nil
		}
		var names []string
		for _, ns := range list.Items {
			names = append(names, ns.Name)
		}
		return names
	}))
}

// complete completes by what an API server has; a completion prints no errors.
func (f *clusterFlags) complete(names func(ctx context.Context, api kube.API) []string) completion {
	return func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		api, err := f.client()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
		defer cancel()
		return withPrefix(names(ctx, api), begun), cobra.ShellCompDirectiveNoFileComp
	}
}

// client returns a client of the API server. Nothing is asked yet.
func (f *clusterFlags) client() (kube.API, error) {
	config, err := f.Rest()
	if err != nil {
		return nil, err
	}
	return kube.NewAPI(config)
}

// maxAnswer bounds what is read as an answer.
const maxAnswer = 1 << 10

// confirm asks a question of yes or no; anything but yes is no. Without input to read it is an error that names the
// flag which answers.
func confirm(in io.Reader, out io.Writer, question, flag string) (bool, error) {
	fmt.Fprintf(out, "%s [y/N] ", question)
	line, err := bufio.NewReader(io.LimitReader(in, maxAnswer)).ReadString('\n')
	if err != nil && line == "" {
		fmt.Fprintln(out)
		if errors.Is(err, io.EOF) {
			return false, process.Usage(fmt.Errorf("nobody answers: standard input is at its end; %s answers yes", flag))
		}
		return false, err
	}
	return slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(line))), nil
}

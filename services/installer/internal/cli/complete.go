package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/proxyview"
)

// completeTimeout bounds the calls of one completion: a person has pressed the tab key and waits.
const completeTimeout = 5 * time.Second

// completion is the type of cobra's functions that complete arguments and values of flags.
type completion = func(cmd *cobra.Command, a []string, begun string) ([]string, cobra.ShellCompDirective)

// completeFlag makes values the completions of a flag. Registration fails only for a flag that the command lacks.
func completeFlag(cmd *cobra.Command, flag string, values ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// queryForCompletion runs query with a client of config-watcher. It returns nil where no mesh runs: a completion prints
// no errors.
func (t *meshFlags) queryForCompletion(cmd *cobra.Command, query func(ctx context.Context, client *configapi.Client) []string) []string {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	client, err := t.Machine().Dial(ctx)
	if err != nil {
		return nil
	}
	defer client.Close()
	return query(ctx, client)
}

// withPrefix returns the names of the list that begin with text, sorted, each once.
func withPrefix(list []string, text string) []string {
	list = slices.DeleteFunc(slices.Clone(list), func(s string) bool { return !strings.HasPrefix(s, text) })
	slices.Sort(list)
	return slices.Compact(list)
}

// proxyNames lists the connected proxies and those of the run directory, in the namespace of -n.
func (t *meshFlags) proxyNames(cmd *cobra.Command) []string {
	namespace, _ := cmd.Flags().GetString("namespace") // no such flag: all
	names := t.queryForCompletion(cmd, func(ctx context.Context, client *configapi.Client) []string {
		res, err := client.ListProxies(ctx, &configv1.ListProxiesRequest{Namespace: namespace})
		if err != nil {
			return nil
		}
		return lists.Map(res.GetProxies(), func(p *configv1.ProxyStatus) string { return meshclient.ProxyName(p.GetNodeId()) })
	})
	if state, err := t.Machine().State(); err == nil {
		for _, p := range state.Pods {
			if p.Agent != nil && (namespace == "" || p.Namespace == namespace) {
				names = append(names, p.ID())
			}
		}
	}
	return names
}

// completeProxies completes each of the first count arguments as a proxy.
func (t *meshFlags) completeProxies(count int) completion {
	return func(cmd *cobra.Command, a []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(a) >= count {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return withPrefix(t.proxyNames(cmd), begun), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeServices completes the argument at a place as a Service, NAME.NAMESPACE.
func (t *meshFlags) completeServices(place int) completion {
	return func(cmd *cobra.Command, a []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(a) != place {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names := t.queryForCompletion(cmd, func(ctx context.Context, client *configapi.Client) []string {
			res, err := client.List(ctx, &configv1.ListRequest{Kind: "Service", InForce: true, WithoutManifests: true})
			if err != nil {
				return nil
			}
			return lists.Map(res.GetObjects(), func(o *configv1.Object) string { return o.GetKey().GetName() + "." + o.GetKey().GetNamespace() })
		})
		return withPrefix(names, begun), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeConfig completes the arguments of `proxy-config`: a section and a proxy, in either order.
func (t *meshFlags) completeConfig(cmd *cobra.Command, a []string, begun string) ([]string, cobra.ShellCompDirective) {
	var list []string
	switch {
	case len(a) == 0:
		list = append(proxyview.SectionNames(), t.proxyNames(cmd)...)
	case len(a) == 1 && !cmd.Flags().Changed("filename") && !cmd.Flags().Changed("selector"):
		if list = proxyview.SectionNames(); isSection(a[0]) {
			list = t.proxyNames(cmd)
		}
	}
	return withPrefix(list, begun), cobra.ShellCompDirectiveNoFileComp
}

func isSection(name string) bool {
	_, ok := proxyview.Find(name, false)
	return ok
}

// completeNamespaces completes --namespace.
func (t *meshFlags) completeNamespaces(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	list := t.queryForCompletion(cmd, func(ctx context.Context, client *configapi.Client) []string {
		list, err := meshclient.Namespaces(ctx, client)
		if err != nil {
			return nil
		}
		return list
	})
	return withPrefix(list, begun), cobra.ShellCompDirectiveNoFileComp
}

package meshflags

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli/complete"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/objectfile"
)

// queryForCompletion runs query with a client of config-watcher. It returns nil where no mesh runs: a completion prints
// no errors.
func (t *Flags) queryForCompletion(cmd *cobra.Command, query func(ctx context.Context, client *configapi.Client) []string) []string {
	ctx, cancel := context.WithTimeout(cmd.Context(), complete.Timeout)
	defer cancel()
	client, err := t.Machine().Dial(ctx)
	if err != nil {
		return nil
	}
	defer client.Close()
	return query(ctx, client)
}

// ProxyNames lists the connected proxies and those of the run directory, in the namespace of -n.
func (t *Flags) ProxyNames(cmd *cobra.Command) []string {
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

// CompleteProxies completes each of the first count arguments as a proxy.
func (t *Flags) CompleteProxies(count int) complete.Func {
	return func(cmd *cobra.Command, a []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(a) >= count {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete.WithPrefix(t.ProxyNames(cmd), begun), cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteServices completes the argument at a place as a Service, NAME.NAMESPACE.
func (t *Flags) CompleteServices(place int) complete.Func {
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
		return complete.WithPrefix(names, begun), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeNamespaces completes --namespace.
func (t *Flags) completeNamespaces(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	list := t.queryForCompletion(cmd, func(ctx context.Context, client *configapi.Client) []string {
		list, err := meshclient.Namespaces(ctx, client)
		if err != nil {
			return nil
		}
		return list
	})
	return complete.WithPrefix(list, begun), cobra.ShellCompDirectiveNoFileComp
}

// CompleteObjects completes kinds, after commas too, and names of objects.
func (t *Flags) CompleteObjects(cmd *cobra.Command, a []string, begun string) ([]string, cobra.ShellCompDirective) {
	prefix, kind, short := "", "", begun
	switch {
	case len(a) > 0 && !strings.Contains(a[0], "/"):
		kind = a[0]
	case strings.Contains(begun, "/"):
		kind, short, _ = strings.Cut(begun, "/")
		prefix = kind + "/"
	default:
		if i := strings.LastIndexByte(begun, ','); i >= 0 {
			prefix, short = begun[:i+1], begun[i+1:]
		}
		list := slices.Collect(kinds.Spellings)
		return addPrefix(prefix, complete.WithPrefix(list, strings.ToLower(short))), cobra.ShellCompDirectiveNoFileComp
	}
	namespace, _ := cmd.Flags().GetString("namespace") // no such flag: all
	names := t.queryForCompletion(cmd, func(ctx context.Context, client *configapi.Client) []string {
		var list []string
		for one := range strings.SplitSeq(kind, ",") {
			one, err := kinds.Parse(one)
			if err != nil {
				continue
			}
			res, err := client.List(ctx, &configv1.ListRequest{Kind: one, Namespace: namespace, InForce: true, WithoutManifests: true})
			if err != nil {
				continue
			}
			for _, o := range res.GetObjects() {
				name := o.GetKey().GetName()
				if ns := o.GetKey().GetNamespace(); namespace == "" && ns != "" && ns != objectfile.DefaultNamespace {
					name += "." + ns
				}
				list = append(list, name)
			}
		}
		return list
	})
	return addPrefix(prefix, complete.WithPrefix(names, short)), cobra.ShellCompDirectiveNoFileComp
}

func addPrefix(prefix string, list []string) []string {
	for i := range list {
		list[i] = prefix + list[i]
	}
	return list
}

package meshflags

import (
	"context"
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

// ask runs query with a client of config-watcher. It returns nil where no mesh runs, or does not answer.
func (f *Flags) ask(cmd *cobra.Command, query func(ctx context.Context, client *configapi.Client) ([]string, error)) []string {
	ctx, cancel := context.WithTimeout(cmd.Context(), complete.Timeout)
	defer cancel()
	client, err := f.Machine().Dial(ctx)
	if err != nil {
		return nil
	}
	defer client.Close()
	names, err := query(ctx, client)
	if err != nil {
		return nil
	}
	return names
}

// ProxyNames lists the connected proxies and those of the run directory, in the namespace of -n.
func (f *Flags) ProxyNames(cmd *cobra.Command) []string {
	namespace, _ := cmd.Flags().GetString("namespace") // no such flag: all
	names := f.ask(cmd, func(ctx context.Context, client *configapi.Client) ([]string, error) {
		res, err := client.ListProxies(ctx, &configv1.ListProxiesRequest{Namespace: namespace})
		return lists.Map(res.GetProxies(), func(p *configv1.ProxyStatus) string { return meshclient.ProxyName(p.GetNodeId()) }), err
	})
	if state, err := f.Machine().State(); err == nil {
		for _, p := range state.Pods {
			if p.Agent != nil && (namespace == "" || p.Namespace == namespace) {
				names = append(names, p.ID())
			}
		}
	}
	return names
}

// CompleteProxies completes the first argument as a proxy.
func (f *Flags) CompleteProxies() complete.Func {
	return complete.Names(func(cmd *cobra.Command, a []string) []string {
		if len(a) > 0 {
			return nil
		}
		return f.ProxyNames(cmd)
	})
}

// CompleteServices completes the argument at a place as a Service, NAME.NAMESPACE.
func (f *Flags) CompleteServices(place int) complete.Func {
	return complete.Names(func(cmd *cobra.Command, a []string) []string {
		if len(a) != place {
			return nil
		}
		return f.ask(cmd, func(ctx context.Context, client *configapi.Client) ([]string, error) {
			res, err := client.List(ctx, &configv1.ListRequest{Kind: "Service", InForce: true, WithoutManifests: true})
			return lists.Map(res.GetObjects(), func(o *configv1.Object) string {
				return o.GetKey().GetName() + "." + o.GetKey().GetNamespace()
			}), err
		})
	})
}

// CompleteObjects completes kinds, after commas too, and names of objects.
func (f *Flags) CompleteObjects(cmd *cobra.Command, a []string, begun string) ([]string, cobra.ShellCompDirective) {
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
		return addPrefix(prefix, complete.WithPrefix(kinds.Spellings(), strings.ToLower(short))), cobra.ShellCompDirectiveNoFileComp
	}
	namespace, _ := cmd.Flags().GetString("namespace") // no such flag: all
	names := f.ask(cmd, func(ctx context.Context, client *configapi.Client) (list []string, _ error) {
		for one := range strings.SplitSeq(kind, ",") {
			one, err := kinds.Parse(one)
			if err != nil {
				continue
			}
			// A kind that may not be read has no names.
			res, _ := client.List(ctx, &configv1.ListRequest{Kind: one, Namespace: namespace, InForce: true, WithoutManifests: true})
			for _, o := range res.GetObjects() {
				name := o.GetKey().GetName()
				if ns := o.GetKey().GetNamespace(); namespace == "" && ns != "" && ns != objectfile.DefaultNamespace {
					name += "." + ns
				}
				list = append(list, name)
			}
		}
		return list, nil
	})
	return addPrefix(prefix, complete.WithPrefix(names, short)), cobra.ShellCompDirectiveNoFileComp
}

func addPrefix(prefix string, list []string) []string {
	for i := range list {
		list[i] = prefix + list[i]
	}
	return list
}

// CompleteSources completes the first argument as the name of a source.
func (f *Flags) CompleteSources() complete.Func {
	return complete.Names(func(cmd *cobra.Command, a []string) []string {
		if len(a) > 0 {
			return nil
		}
		return f.ask(cmd, func(ctx context.Context, client *configapi.Client) ([]string, error) {
			res, err := client.ListSources(ctx, &configv1.ListSourcesRequest{})
			return lists.Map(res.GetSources(), (*configv1.SourceStatus).GetName), err
		})
	})
}

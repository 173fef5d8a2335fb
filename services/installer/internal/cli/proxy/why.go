package proxy

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"fairlead.dev/services/installer/internal/authzview"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/complete"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/explanation"
	"fairlead.dev/services/installer/internal/proxyview"
	"fairlead.dev/services/installer/internal/structured"
)

func newWhy(flags *meshflags.Flags) *cobra.Command {
	var r explanation.Request
	var namespace string
	out := output.New("json", "yaml")
	cmd := &cobra.Command{
		Use:   "why PROXY RESOURCE",
		Short: "Show which objects a proxy's resource was made from",
		Long: `Show which objects, in which generation, a proxy's resource was made from, which ones about the same hosts have no part in it and why, and what
was looked for and not found.

PROXY is NAME.NAMESPACE, NAME, or a beginning of it that only one proxy has, pod/NAME, or deploy/NAME for the first of a Deployment's Pods. RESOURCE
is the name of a cluster, endpoint assignment, listener, route configuration or virtual host ("<route configuration>/<virtual host>"), as proxy-config
shows it, or a host with or without its port and domain. A host that several resources belong to means its virtual host if there is one; otherwise the
answer is the list of them: choose one by its name or with --type, or take --all. RESOURCE may also be the line of an access log about a request that
was denied: the answer is the policy and rule.`,
		Example: `  fairlead why productpage-v1-0 reviews:9080 --type virtualhosts
  fairlead why productpage-v1-0 'outbound|9080|v2|reviews.default.svc.cluster.local'
  fairlead why reviews-v1-0 'rbac_access_denied_matched_policy[ns[default]-policy[deny-all]-rule[0]]'`,
		Args: command.Args(cobra.ExactArgs(2)),
		ValidArgsFunction: func(cmd *cobra.Command, a []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(a) == 0 {
				return flags.CompleteProxies()(cmd, a, begun)
			}
			return flags.CompleteServices(1)(cmd, a, begun)
		},
		RunE: func(cmd *cobra.Command, a []string) error {
			if authzview.IsDenial(a[1]) {
				return whyDenied(cmd, flags, a[0], namespace, a[1], out)
			}
			mesh := flags.Mesh(cmd)
			proxy, err := mesh.Proxy(cmd.Context(), a[0], namespace)
			if err != nil {
				return err
			}
			r.Resource = a[1]
			answers, chosen, err := explanation.Ask(cmd.Context(), mesh, proxy, r)
			if err != nil {
				return err
			}
			if chosen {
				fmt.Fprintf(cmd.ErrOrStderr(), "%q has other resources too; --type chooses, and --all explains every one\n", r.Resource)
			}
			switch {
			case out.Value != "" && r.All:
				return structured.Print(cmd.OutOrStdout(), out.Value, answers)
			case out.Value != "":
				return structured.Print(cmd.OutOrStdout(), out.Value, answers[0])
			}
			return printExplanations(cmd.OutOrStdout(), proxy.Name(), answers)
		},
	}
	fs := cmd.Flags()
	flags.AddNamespace(cmd, &namespace, "namespace of the proxy, if PROXY does not say")
	fs.StringVarP(&r.Type, "type", "t", "",
		"type of the resource: virtualhosts, clusters, endpoints, listeners, routes, nametables, ..., or a type URL")
	fs.BoolVar(&r.All, "all", false, "explain all resources that RESOURCE may mean")
	output.Flag(cmd, out)
	flags.AddServers(fs)
	flags.AddCluster(cmd)
	complete.Flag(cmd, "type", slices.Sorted(maps.Values(proxyview.ServedTypes))...)
	return cmd
}

// whyDenied prints which policy and rule have denied a request.
func whyDenied(cmd *cobra.Command, flags *meshflags.Flags, proxy, namespace, text string, out *output.Format) error {
	mesh, err := authzview.FromMesh(cmd.Context(), flags.MeshOfOneRevision(cmd))
	if err != nil {
		return err
	}
	to, err := mesh.Target(proxy, namespace)
	if err != nil {
		return err
	}
	d, err := mesh.Denial(to, text)
	switch {
	case err != nil:
		return err
	case out.Value != "":
		return structured.Print(cmd.OutOrStdout(), out.Value, d)
	}
	return d.Print(cmd.OutOrStdout())
}

// printExplanations prints answers for people. The error says that the mesh has made no such resource.
func printExplanations(out io.Writer, proxy string, answers []*explanation.Explanation) error {
	for i, e := range answers {
		if i > 0 {
			fmt.Fprintln(out)
		}
		if err := e.Print(out); err != nil {
			return err
		}
	}
	if e := answers[0]; e.Problem != "" && e.Version == "" && len(e.MadeFrom) == 0 {
		return fmt.Errorf("%s has no resource %q of this type, made from objects of the mesh; `fairlead proxy-config %s %s --served` lists "+
			"what there is", proxy, e.Name, proxy, e.Type)
	}
	return nil
}

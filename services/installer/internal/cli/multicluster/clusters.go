package multicluster

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/kubeflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/clustercheck"
	"fairlead.dev/services/installer/internal/kube"
	"fairlead.dev/services/installer/internal/structured"
	"fairlead.dev/services/installer/internal/table"
)

func newClusters() *cobra.Command {
	return command.Group("clusters", "Meshes of several clusters", newCheck())
}

// errBad is why the exit code is not 0.
var errBad = errors.New("the clusters are not ready to be one mesh: see the rows FAILED and UNKNOWN")

func newCheck() *cobra.Command {
	var at kube.Config
	var contexts []string
	var namespace, revision string
	var call bool
	var calling clustercheck.Call
	out := output.New(output.AsTable, "yaml", "json")
	cmd := &cobra.Command{
		Use:   "check --context A --context B",
		Short: "Probe whether clusters can be one mesh",
		Long: `Probe clusters from both sides, with the rights of whoever runs it, and compare each pair: API servers, ids, trust
domains, roots, networks, east-west gateways, the remote Secrets and whether their credentials work and may read, clocks,
ranges of Pods and Services, and Services of one name. It changes nothing.

With --call a Pod with a sidecar in each cluster calls a Service whose endpoints are in the other alone. These Pods live
two minutes at most, and are removed when they have called, and when the command is interrupted.

Each row says what was found, and what to do. WARNING rows are worth a look; UNKNOWN means that something could not be
read. The exit code is 1 if a row is FAILED or UNKNOWN.`,
		Example: "  fairlead clusters check --context west --context east\n" +
			"  fairlead clusters check --context west --context east --call",
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if sorted := slices.Sorted(slices.Values(contexts)); len(slices.Compact(sorted)) != len(contexts) || len(contexts) < 2 {
				return process.Usage(errors.New("name two contexts or more, each once: --context A --context B"))
			}
			var clusters []clustercheck.Cluster
			for _, name := range contexts {
				of := at
				of.Context = name
				config, err := of.Rest()
				if err != nil {
					return process.Usagef("--context %s: %w", name, err)
				}
				api, err := kube.NewAPI(config)
				if err != nil {
					return process.Usagef("--context %s: %w", name, err)
				}
				clusters = append(clusters, clustercheck.Cluster{Context: name, Config: config, API: api, Namespace: namespace, Revision: revision})
			}
			check := clustercheck.Options{Now: time.Now}
			if call {
				check.Call = &calling
			}
			return printRows(cmd.OutOrStdout(), out.Value, clustercheck.Run(cmd.Context(), clusters, check))
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&at.Kubeconfig, "kubeconfig", "c", "", "kubeconfig file, as of kubectl")
	fs.StringArrayVar(&contexts, "context", nil, "context of the kubeconfig file; repeated, one for each cluster")
	fs.StringVarP(&namespace, "istioNamespace", "i", kubeflags.DefaultIstioNamespace, "namespace of the control planes")
	fs.StringVarP(&revision, "revision", "r", "", "revision of the control planes")
	fs.DurationVar(&at.Timeout, "kubeclient-timeout", kube.RequestTimeout, "how long one request to an API server may take")
	fs.BoolVar(&call, "call", false, "have a Pod of each cluster call the other, and remove the Pods")
	fs.StringVar(&calling.Namespace, "call-namespace", "default", "namespace of the Pods of --call")
	fs.StringVar(&calling.Image, "call-image", "", "image of the Pods of --call, with pilot-agent in it (default: that of a sidecar there)")
	output.Flag(cmd, out)
	_ = cmd.MarkFlagFilename("kubeconfig")
	_ = cmd.RegisterFlagCompletionFunc("context", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return at.Contexts(), cobra.ShellCompDirectiveNoFileComp
	})
	return cmd
}

func printRows(out io.Writer, format string, rows []clustercheck.Row) error {
	if format != "" {
		if err := structured.Print(out, format, rows); err != nil {
			return err
		}
	} else {
		tab := &table.Table{Header: []string{"CHECK", "CLUSTERS", "VERDICT", "FINDING"}}
		for _, row := range rows {
			finding := row.Finding
			if row.Remedy != "" {
				finding = fmt.Sprintf("%s; %s", finding, row.Remedy)
			}
			tab.Add(row.Check, strings.Join(row.Clusters, " "), string(row.Verdict), finding)
		}
		if err := tab.Write(out); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(rows, clustercheck.Row.Bad) {
		return errBad
	}
	return nil
}

package authz

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/authzview"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/fileflag"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/structured"
)

func newDiff(env command.Env, flags *meshflags.Flags) *cobra.Command {
	s := &source{env: env, flags: flags}
	var changed, from fileflag.List
	var prune, exitCode bool
	out := output.New("json", "yaml")
	cmd := &cobra.Command{
		Use:   "diff -f NEW",
		Short: "Say which requests a change of policies would decide otherwise",
		Long: `Say which requests a change of policies would decide otherwise: for every workload of the mesh and every pair of rules, or of none, that decides
before and after, one request that represents its class, and the callers concerned. No change is missed: values are not tried, but divided into classes
that no rule tells apart. Where there are too many of them, that is said. Providers that CUSTOM policies ask are named if MeshConfig defines them
otherwise; what they answer is not known.

NEW has AuthorizationPolicies and RequestAuthentications, which take the place of those of the same name, and may have MeshConfig; its other objects are
passed over. The mesh is one that runs, or that of --from. A policy that the mesh would refuse is refused here, too. Notes say what becomes of tokens, and
of paths where pathNormalization changes.

Exit code 0 whatever the answer is; with --exit-code 1 if anything changes.`,
		Example: `  fairlead authz diff -f policies/
  fairlead authz diff -f policies/ --prune --exit-code
  fairlead authz diff --from mesh/ -f change.yaml -o json`,
		Args: command.Args(fileflag.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(changed) == 0 {
				return process.Usage(errors.New("name the files of the change with -f"))
			}
			s.files = from
			before, err := s.read(cmd)
			if err != nil {
				return err
			}
			after, err := before.Replace(changed, s.input(cmd), prune)
			if err != nil {
				return err
			}
			d, err := before.Diff(cmd.Context(), after)
			if err != nil {
				return err
			}
			if out.Value != "" {
				err = structured.Print(cmd.OutOrStdout(), out.Value, d)
			} else {
				err = d.Print(cmd.OutOrStdout())
			}
			if err == nil && exitCode && d.Changed() {
				err = fmt.Errorf("%d classes of requests are decided otherwise, beside what the notes name, and the providers", d.Count())
			}
			return err
		},
	}
	fs := cmd.Flags()
	fileflag.Add(fs, (*[]string)(&changed), "the change: a file, a directory, or - for standard input")
	fs.Var(&from, "from", "read the mesh from a file or a directory, and ask no mesh that runs")
	fs.BoolVar(&prune, "prune", false, "policies that NEW does not have are gone")
	fs.BoolVar(&exitCode, "exit-code", false, "exit with 1 if anything changes")
	output.Flag(cmd, out)
	s.addBinDir(cmd)
	s.addMesh(cmd)
	return cmd
}

func newDryRun(env command.Env, flags *meshflags.Flags) *cobra.Command {
	s := &source{env: env, flags: flags}
	var namespace string
	out := output.New("json", "yaml")
	cmd := &cobra.Command{
		Use:   "dry-run [WORKLOAD]",
		Short: "Show what policies in dry run would have refused, by policy and caller",
		Long: `Show what policies in dry run (annotation istio.io/dry-run: "true") would have refused, by policy, rule and caller, as the proxies of a workload, or
of all, have counted since they started.`,
		Example: `  fairlead authz dry-run
  fairlead authz dry-run reviews.shop -o json`,
		Args:              command.Args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: s.completeNames(1),
		RunE: func(cmd *cobra.Command, a []string) error {
			mesh, workloads, counts, err := s.count(cmd, a, namespace)
			if err != nil {
				return err
			}
			d := mesh.DryRuns(workloads, counts)
			if out.Value != "" {
				return structured.Print(cmd.OutOrStdout(), out.Value, d)
			}
			return d.Print(cmd.OutOrStdout())
		},
	}
	flags.AddNamespace(cmd, &namespace, "namespace of the workloads (default: all)")
	output.Flag(cmd, out)
	s.addMesh(cmd)
	return cmd
}

// count reads a mesh that runs and asks the proxies of a workload, or of all of a namespace.
func (s *source) count(cmd *cobra.Command, a []string, namespace string) (*authzview.Mesh, []*authzview.Workload, *authzview.Counts,
	error) {
	mesh, err := s.read(cmd)
	if err != nil {
		return nil, nil, nil, err
	}
	workloads := mesh.WorkloadsIn(namespace)
	if len(a) > 0 {
		to, err := mesh.Target(a[0], namespace)
		if err != nil {
			return nil, nil, nil, err
		}
		workloads = to.Workloads
	}
	counts, err := authzview.Count(cmd.Context(), s.flags.MeshOfOneRevision(cmd), workloads)
	return mesh, workloads, counts, err
}

func newCoverage(env command.Env, flags *meshflags.Flags) *cobra.Command {
	s := &source{env: env, flags: flags}
	var all bool
	out := output.New("json", "yaml")
	cmd := &cobra.Command{
		Use:   "coverage",
		Short: "Find rules that have never matched, cannot match, or are covered by others",
		Long: `Find rules that could be left out: those that no request can match, those of which other rules decide every request in the same way wherever they
apply, policies that apply to no workload, and in a mesh that runs those that have matched no request since the proxies started.`,
		Example: `  fairlead authz coverage
  fairlead authz coverage -f mesh/ -A -o json`,
		Args: command.Args(fileflag.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			mesh, err := s.read(cmd)
			if err != nil {
				return err
			}
			var counts *authzview.Counts
			var notes []string
			if len(s.files) == 0 {
				if counts, err = authzview.Count(cmd.Context(), flags.MeshOfOneRevision(cmd), mesh.Workloads); err != nil {
					notes = append(notes, fmt.Sprintf("which rules have matched is not known: %v", err))
				} else {
					for _, uncounted := range slices.Concat(counts.Silent, counts.Without) {
						notes = append(notes, "not counted: "+uncounted)
					}
				}
			}
			c, err := mesh.Coverage(cmd.Context(), counts)
			if err != nil {
				return err
			}
			c.Notes = append(c.Notes, notes...)
			if out.Value != "" {
				return structured.Print(cmd.OutOrStdout(), out.Value, c)
			}
			return c.Print(cmd.OutOrStdout(), !all)
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "A", false, "show all rules, not only those that could be left out")
	output.Flag(cmd, out)
	s.add(cmd)
	return cmd
}

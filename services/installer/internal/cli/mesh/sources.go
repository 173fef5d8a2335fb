package mesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/structured"
	"fairlead.dev/services/installer/internal/table"
)

func newSources(flags *meshflags.Flags) *cobra.Command {
	out := output.New(output.AsTable, "yaml", "json")
	cmd := &cobra.Command{
		Use:   "sources",
		Short: "List where the mesh's configuration, services and endpoints come from, and how each source does",
		Long: `List the sources of each replica of config-watcher, those of remote clusters included:

  SYNCED      it is read and followed
  SYNCING     it is being read for the first time
  DEGRADED    it, or a part of it, cannot be read now; what was known last stays
  AWAY        nothing of it answers; what was known last stays
  SAVED       it was not read since the start; what an earlier run has saved is served
  HELD        its last reading lacks much of what is in force: more than ten and more than half of a kind, or of a registry's services or endpoints.
              That stays until a second reading, at least 30 s later, lacks it too, or until ` + "`fairlead sources accept`" + `

AGE is for how long the source may have changed without notice.`,
		Example: `  fairlead sources
  fairlead sources -o json
  fairlead sources accept kubernetes/east
  fairlead sources preview consul-east.yaml`,
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return sources(cmd.Context(), flags.Mesh(cmd), out.Value, cmd.OutOrStdout())
		},
	}
	flags.Add(cmd.Flags())
	output.Flag(cmd, out)
	flags.AddCluster(cmd)
	cmd.AddCommand(newSourcesAccept(flags), newSourcesPreview(flags))
	return cmd
}

func newSourcesAccept(flags *meshflags.Flags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "accept NAME",
		Short: "Accept at once that what a source withholds is gone",
		Long: `Remove at once what the source NAME withholds: what its last list lacks, because it was deleted on purpose. Each replica of config-watcher reads for
itself, so each is told, and what each has done is printed. For administrators; the audit log (` + "`fairlead config audit`" + `) has who has done it.

Exit code 1 if nothing was withheld, or if a replica could not be told.`,
		Example: "  fairlead sources accept kubernetes/east",
		Args:    command.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			return acceptSource(cmd.Context(), flags.Mesh(cmd), a[0], cmd.OutOrStdout())
		},
		ValidArgsFunction: flags.CompleteSources(),
	}
	flags.Add(cmd.Flags())
	flags.AddCluster(cmd)
	return cmd
}

// replicaSources is what one replica of config-watcher says of its sources.
type replicaSources struct {
	replica string
	sources []*configv1.SourceStatus
	err     error
}

// askReplicas calls each replica of config-watcher at once.
func askReplicas[T any](ctx context.Context, mesh *meshclient.Mesh, call func(context.Context, *configapi.Client) (T, error)) (
	names []string, answers []T, errs []error, err error,
) {
	ctx, cancel := context.WithTimeout(ctx, meshclient.CallTimeout)
	defer cancel()
	watchers, err := mesh.Watchers(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	defer meshclient.CloseAll(watchers)
	names, answers, errs = make([]string, len(watchers)), make([]T, len(watchers)), make([]error, len(watchers))
	var all sync.WaitGroup
	for i, w := range watchers {
		names[i] = w.Name
		all.Go(func() {
			if answers[i], errs[i] = call(ctx, w.Client); errs[i] != nil {
				errs[i] = configapi.WithExitCode(w.Explain(errs[i]))
			}
		})
	}
	all.Wait()
	return names, answers, errs, nil
}

func sources(ctx context.Context, mesh *meshclient.Mesh, format string, out io.Writer) error {
	list := func(ctx context.Context, c *configapi.Client) (*configv1.ListSourcesResponse, error) {
		return c.ListSources(ctx, &configv1.ListSourcesRequest{})
	}
	names, answers, errs, err := askReplicas(ctx, mesh, list)
	if err != nil {
		return err
	}
	replicas := make([]replicaSources, len(names))
	for i, name := range names {
		replicas[i] = replicaSources{name, answers[i].GetSources(), errs[i]}
		if errs[i] != nil && len(names) > 1 {
			errs[i] = fmt.Errorf("%s: %w", name, errs[i])
		}
	}
	if format != "" {
		err = printSourcesAs(out, format, replicas)
	} else {
		err = printSources(out, replicas, time.Now())
	}
	return errors.Join(append(errs, err)...)
}

// printSourcesAs prints a list of the sources of all replicas that answer, each with its replica.
func printSourcesAs(out io.Writer, format string, replicas []replicaSources) error {
	type row struct {
		Replica string `json:"replica"`
		Source  any    `json:"source"`
	}
	all := []row{}
	for _, r := range replicas {
		for _, s := range r.sources {
			tree, err := structured.Tree(s)
			if err != nil {
				return err
			}
			all = append(all, row{r.replica, tree})
		}
	}
	return structured.Print(out, format, all)
}

func printSources(out io.Writer, replicas []replicaSources, now time.Time) error {
	tab := &table.Table{Header: []string{"NAME", "STATE", "AGE", "OBJECTS", "PROBLEM", "REMEDY"}}
	several := len(replicas) > 1
	if several {
		tab.Header = append([]string{"REPLICA"}, tab.Header...)
	}
	for _, r := range replicas {
		for _, s := range r.sources {
			age := ""
			if s.GetStaleSince() != nil {
				age = duration.HumanDuration(now.Sub(s.GetStaleSince().AsTime()))
			}
			cells := []string{s.GetName(), strings.TrimPrefix(s.GetState().String(), "SOURCE_STATE_"), age, fmt.Sprint(s.GetObjects()),
				s.GetProblem(), s.GetRemedy()}
			if several {
				cells = append([]string{r.replica}, cells...)
			}
			tab.Add(cells...)
		}
	}
	if len(tab.Rows) == 0 {
		return nil // no replica has answered, which the errors say
	}
	return tab.Write(out)
}

func acceptSource(ctx context.Context, mesh *meshclient.Mesh, name string, out io.Writer) error {
	accept := func(ctx context.Context, c *configapi.Client) (*configv1.AcceptSourceResponse, error) {
		return c.AcceptSource(ctx, &configv1.AcceptSourceRequest{Name: name})
	}
	replicas, answers, errs, err := askReplicas(ctx, mesh, accept)
	if err != nil {
		return err
	}
	removed := uint32(0)
	for i, replica := range replicas {
		switch n := answers[i].GetRemoved(); {
		case errs[i] != nil:
			errs[i] = fmt.Errorf("%s: %w", replica, errs[i])
		case n == 0:
			fmt.Fprintf(out, "%s: nothing of %s is withheld\n", replica, name)
		default:
			removed += n
			fmt.Fprintf(out, "%s: %d objects of %s are removed\n", replica, n, name)
		}
	}
	if err := errors.Join(errs...); err != nil || removed > 0 {
		return err
	}
	return fmt.Errorf("nothing of %s is withheld: there is nothing to accept; `fairlead sources` shows the state of each source", name)
}

package local

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/process"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/runstate"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/complete"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/local/rundir"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/proxyname"
)

// restartFlags are the flags of `fairlead restart`.
type restartFlags struct {
	namespace string
	timeout   time.Duration
}

func newRestart(flags *meshflags.Flags) *cobra.Command {
	var f restartFlags
	cmd := &cobra.Command{
		Use:   "restart POD|deploy/NAME...",
		Short: "Restart Pods of a mesh on this machine",
		Long: `Restart Pods of a mesh that runs on this machine (fairlead up), one after the other: each is taken out of the mesh, drains, ends, starts
again, and is waited for until it is ready. In a cluster, kubectl rollout restart does that.

A name is that of a Pod (NAME.NAMESPACE, NAME, or the beginning of one, pod/NAME) or deploy/NAME for all Pods of a Deployment. What they run
is what the mesh files said when the mesh was started.

Exit code 1 if a Pod is not ready after --timeout; the Pods after it are not restarted.`,
		Example: `  fairlead restart deploy/reviews-v1
  fairlead restart productpage-v1-0.default`,
		Args:              command.Args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: completePods(flags),
		RunE: func(cmd *cobra.Command, a []string) error {
			return restart(cmd.Context(), flags.Machine(), f, a, cmd.OutOrStdout())
		},
	}
	flags.AddNamespace(cmd, &f.namespace, "namespace of the Pods (default: all)")
	cmd.Flags().DurationVar(&f.timeout, "timeout", time.Minute, "how long to wait for each Pod")
	return cmd
}

func restart(ctx context.Context, mesh *meshclient.Mesh, f restartFlags, names []string, out io.Writer) error {
	state, err := mesh.State()
	if err != nil {
		return err
	}
	pods, err := podsNamed(state, names, f.namespace)
	if err != nil {
		return err
	}
	for _, p := range pods {
		if err := rundir.Rests(p); err != nil {
			return err
		}
		err := mesh.Call(ctx, func(ctx context.Context, client *configapi.Client) error {
			_, err := client.Delete(ctx, &configv1.DeleteRequest{Key: kinds.Key("Pod", p.Namespace, p.Name)})
			return err
		})
		if err != nil {
			return err
		}
		if err := waitRestarted(ctx, mesh, p, f.timeout); err != nil {
			return err
		}
		fmt.Fprintf(out, "Pod %s restarted\n", p.ID())
	}
	return nil
}

// podsNamed lists the Pods that names mean, each once, in the order of the state.
func podsNamed(state *runstate.State, names []string, namespace string) ([]*runstate.Pod, error) {
	candidates := lists.Map(state.Pods, func(p runstate.Pod) proxyname.Proxy {
		return proxyname.Proxy{Name: p.Name, Namespace: p.Namespace, Workload: p.Workload}
	})
	var chosen []int
	for _, name := range names {
		wanted, err := proxyname.Parse(name, namespace)
		if err != nil {
			return nil, process.Usage(err)
		}
		matches, err := wanted.Find(candidates)
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, matches...)
	}
	slices.Sort(chosen)
	return lists.Map(slices.Compact(chosen), func(i int) *runstate.Pod { return &state.Pods[i] }), nil
}

// waitRestarted waits until a Pod is ready with other processes than before.
func waitRestarted(ctx context.Context, mesh *meshclient.Mesh, before *runstate.Pod, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		state, err := mesh.State()
		if err != nil {
			return err
		}
		for i := range state.Pods {
			if now := &state.Pods[i]; now.ID() == before.ID() && now.Ready && allRestarted(before, now) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("Pod %s is not ready again after %s; `fairlead logs %s` shows why", before.ID(), timeout, before.ID())
		case <-time.After(pollInterval):
		}
	}
}

// allRestarted reports whether each process of a Pod runs, and is another than before.
func allRestarted(before, now *runstate.Pod) bool {
	old := pidsOf(before)
	return lists.All(pidsOf(now), func(pid int) bool { return pid > 0 && !slices.Contains(old, pid) })
}

// pidsOf lists the processes of a Pod, 0 for one that does not run.
func pidsOf(p *runstate.Pod) []int {
	list := lists.Map(p.Containers, func(c runstate.Container) int { return c.PID })
	if p.Agent != nil {
		list = append(list, p.Agent.PID)
	}
	return list
}

// completePods completes names of the Pods of the run directory.
func completePods(flags *meshflags.Flags) complete.Func {
	return complete.Names(func(_ *cobra.Command, a []string) (list []string) {
		state, err := flags.Machine().State()
		if err != nil {
			return nil
		}
		for _, p := range state.Pods {
			list = append(list, p.ID(), "deploy/"+p.Workload)
		}
		return slices.DeleteFunc(list, func(name string) bool { return slices.Contains(a, name) })
	})
}

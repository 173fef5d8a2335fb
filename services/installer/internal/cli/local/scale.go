package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/nearest"
	"fairlead.dev/pkg/process"
	"fairlead.dev/proto/fairlead/runstate"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/complete"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/local/rundir"
	"fairlead.dev/services/installer/internal/meshclient"
)

// scaleFlags are the flags of `fairlead scale`.
type scaleFlags struct {
	namespace string
	replicas  int
	timeout   time.Duration
}

func newScale(flags *meshflags.Flags) *cobra.Command {
	var f scaleFlags
	cmd := &cobra.Command{
		Use:   "scale deploy/NAME --replicas=N",
		Short: "Run fewer Pods of a Deployment of a mesh on this machine, or all of them again",
		Long: `Run fewer Pods of a Deployment of a mesh that runs on this machine (fairlead up), or all of them again: those with the highest numbers leave the
mesh, drain and end, and start again when the Deployment is scaled up. In a cluster, kubectl scale does that.

There can be no more Pods than the mesh files said when the mesh was started.

Exit code 1 if it has not come true after --timeout.`,
		Example: `  fairlead scale deploy/reviews-v1 --replicas=0
  fairlead scale deploy/reviews-v1 --replicas=1`,
		Args: command.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: complete.Names(func(_ *cobra.Command, a []string) []string {
			state, err := flags.Machine().State()
			if err != nil || len(a) > 0 {
				return nil
			}
			return lists.Map(state.Pods, func(p runstate.Pod) string { return "deploy/" + p.Workload })
		}),
		RunE: func(cmd *cobra.Command, a []string) error {
			return scale(cmd.Context(), flags.Machine(), f, a[0], cmd.OutOrStdout())
		},
	}
	flags.AddNamespace(cmd, &f.namespace, "namespace of the Deployment (default: that of the only one of this name)")
	cmd.Flags().IntVar(&f.replicas, "replicas", -1, "how many Pods are to run")
	cmd.Flags().DurationVar(&f.timeout, "timeout", time.Minute, "how long to wait")
	return cmd
}

var errReplicas = errors.New("say how many Pods are to run with --replicas, 0 or more")

func scale(ctx context.Context, mesh *meshclient.Mesh, f scaleFlags, name string, out io.Writer) error {
	if f.replicas < 0 {
		return process.Usage(errReplicas)
	}
	state, err := mesh.State()
	if err != nil {
		return err
	}
	pods, err := podsOfDeployment(state, name, f.namespace)
	if err != nil {
		return err
	}
	deployment := pods[0].Namespace + "/" + pods[0].Workload
	if f.replicas > len(pods) {
		return fmt.Errorf("Deployment %s has had %d Pods since the mesh was started; to run more, write the replicas into its file, and end "+
			"`fairlead up` and start it again", deployment, len(pods))
	}
	file := rundir.Layout{Dir: state.RunDir}.Scale()
	scales, err := rundir.ReadScales(file)
	if err != nil {
		return err
	}
	if scales[deployment] = f.replicas; f.replicas == len(pods) {
		delete(scales, deployment)
	}
	if err := rundir.WriteScales(file, scales); err != nil {
		return err
	}
	if err := waitScaled(ctx, mesh, deployment, f); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "Deployment %s runs %d of %d Pods\n", deployment, f.replicas, len(pods))
	return err
}

// podsOfDeployment lists the Pods of the Deployment that a name means, at least one.
func podsOfDeployment(state *runstate.State, name, namespace string) ([]runstate.Pod, error) {
	short := strings.TrimPrefix(strings.TrimPrefix(name, "deployment/"), "deploy/")
	found := map[string][]runstate.Pod{}
	var there, having, namespaces []string
	for _, p := range state.Pods {
		there, namespaces = append(there, p.Workload), append(namespaces, p.Namespace)
		if p.Workload == short {
			having = append(having, p.Namespace)
		}
		if p.Workload == short && (namespace == "" || p.Namespace == namespace) {
			found[p.Namespace] = append(found[p.Namespace], p)
		}
	}
	switch len(found) {
	case 0:
		if len(having) > 0 { // elsewhere than in namespace
			return nil, noneInNamespace(short, namespace, having, namespaces)
		}
		slices.Sort(there)
		return nil, fmt.Errorf("no Deployment is named %q%s", short, nearest.Hint(short, slices.Compact(there)))
	case 1:
		for _, pods := range found {
			return pods, nil
		}
	}
	return nil, process.Usagef("%d namespaces have a Deployment %q: say which one with -n", len(found), short)
}

// noneInNamespace is the error about a Deployment that only other namespaces have, with the nearest of them if there is
// one, else all.
func noneInNamespace(name, namespace string, having, all []string) error {
	slices.Sort(having)
	having = slices.Compact(having)
	none := fmt.Sprintf("namespace %q has no Deployment %q", namespace, name)
	if !slices.Contains(all, namespace) {
		none = fmt.Sprintf("no Deployment is in namespace %q", namespace)
	}
	if near := nearest.Name(namespace, having); near != "" {
		return fmt.Errorf("%s; did you mean -n %s?", none, near)
	}
	return fmt.Errorf("%s; there is one in namespace %s: add -n %s", none, strings.Join(having, ", "), having[0])
}

// waitScaled waits until the Pods of a Deployment that are to run are ready, and nothing runs of the others.
func waitScaled(ctx context.Context, mesh *meshclient.Mesh, deployment string, f scaleFlags) error {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	for {
		state, err := mesh.State()
		if err != nil {
			return err
		}
		ready, left := 0, 0
		for _, p := range state.Pods {
			switch {
			case p.Namespace+"/"+p.Workload != deployment:
			case !p.Resting && p.Ready:
				ready++
			case p.Resting && (p.Ready || !lists.All(pidsOf(&p), func(pid int) bool { return pid == 0 })):
				left++
			}
		}
		if ready == f.replicas && left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("Deployment %s has %d Pods that are ready and %d that end after %s, want %d; `fairlead logs deploy/%s` shows why",
				deployment, ready, left, f.timeout, f.replicas, deployment[strings.IndexByte(deployment, '/')+1:])
		case <-time.After(pollInterval):
		}
	}
}

package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/nearest"
	"fairlead.dev/proto/fairlead/runstate"

	"fairlead.dev/services/installer/internal/local/logview"
	"fairlead.dev/services/installer/internal/local/rundir"
	"fairlead.dev/services/installer/internal/proxyname"
)

// logFlags are the flags of `fairlead logs`.
type logFlags struct {
	selection
	container string
	follow    bool
	tail      int
	since     time.Duration
	level     string
	prefix    bool
	// defaultTail and defaultPrefix are true if the flag is not given.
	defaultTail, defaultPrefix bool
}

// severalTail is the default of --tail for several logs.
const severalTail = 20

func newLogs(t *target) *cobra.Command {
	var f logFlags
	cmd := &cobra.Command{
		Use:     "logs [SERVICE|PROXY]...",
		Aliases: []string{"log"},
		Short:   "Show the logs of a mesh on this machine: of its services, proxies and applications",
		Long: `Show the logs of a mesh that runs on this machine, or has ended there: those named, or all. A name is that of one of Fairlead's processes (ca,
config-watcher, xds-server for all of them, xds-server-0, fairlead for ` + "`fairlead up`" +
			` itself), of a Pod (NAME.NAMESPACE, NAME, or the beginning of one, pod/NAME,
deploy/NAME), or of one process of a Pod (NAME.NAMESPACE/CONTAINER; istio-proxy is its agent with its Envoy).

Lines of several logs are in the order of their times, each with the name of its log. --level and --since go by what lines say, in JSON or in Envoy's
form; a line that says nothing belongs to the one before it. On a terminal, control characters in lines, colours included, are shown as \x1b; a pipe or a
file gets them unchanged.

Exit code 0, with a line on standard error, if no line is to be shown; 1 if there is no such mesh, process or Pod.`,
		Example: `  fairlead logs xds-server --level warn
  fairlead logs reviews-v1-0 -f
  fairlead logs deploy/reviews-v1 -c istio-proxy --since 10m`,
		ValidArgsFunction: t.completeLogs,
		RunE: func(cmd *cobra.Command, a []string) error {
			f.defaultTail, f.defaultPrefix = !cmd.Flags().Changed("tail"), !cmd.Flags().Changed("prefix")
			return showLogs(cmd.Context(), t, a, f, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	f.register(cmd, t, "of the Pods (default: all)")
	f.registerSelector(cmd, "Pod's labels")
	fs.StringVarP(&f.container, "container", "c", "", "only this process of Pods: a container, or istio-proxy")
	fs.BoolVarP(&f.follow, "follow", "f", false, "go on with new lines until Ctrl-C")
	fs.IntVar(&f.tail, "tail", -1, fmt.Sprintf("how many of the last lines of each log, -1 for all (default: all of one log, %d of several)",
		severalTail))
	fs.DurationVar(&f.since, "since", 0, "only lines younger than this, as 10m")
	fs.StringVar(&f.level, "level", "debug", "only lines of this level and above: "+strings.Join(logview.LevelNames, ", "))
	fs.BoolVar(&f.prefix, "prefix", false, "begin each line with the name of its log (default: if there are several)")
	_ = cmd.RegisterFlagCompletionFunc("container", t.completeContainers)
	completeFlag(cmd, "level", logview.LevelNames...)
	return cmd
}

func showLogs(ctx context.Context, t *target, names []string, f logFlags, out, diagnostics io.Writer) error {
	level, ok := logview.ParseLevel(f.level)
	if !ok {
		return usage(fmt.Errorf("--level %q is none of %s%s", f.level, strings.Join(logview.LevelNames, ", "),
			nearest.Hint(f.level, logview.LevelNames)))
	}
	if f.since < 0 {
		return usage(fmt.Errorf("--since %s is negative", f.since))
	}
	state, err := t.lastState()
	if err != nil {
		return err
	}
	sources, err := f.sources(state, names)
	if err != nil {
		return err
	}
	opts := logview.Options{Tail: f.tail, Level: level, Poll: 2 * pollInterval}
	if f.since > 0 {
		opts.Since = time.Now().Add(-f.since)
	}
	several := len(sources) > 1
	if f.defaultTail && several {
		opts.Tail = severalTail
	}
	width := 0
	for _, s := range sources {
		width = max(width, len(s.Name))
	}
	shown := 0
	buffered := bufio.NewWriter(out)
	show := func(l logview.Line) error {
		shown++
		text := l.Text + "\n"
		if f.prefix || f.defaultPrefix && several {
			text = fmt.Sprintf("%-*s  %s", width, l.Source, text)
		}
		_, err := buffered.WriteString(text)
		return err
	}
	r, err := logview.Open(sources, opts)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := errors.Join(r.Read(show), buffered.Flush()); err != nil {
		return err
	}
	if shown == 0 && !f.follow {
		fmt.Fprintf(diagnostics, "no line to show in %s\n", filepath.Join(state.RunDir, "logs"))
	}
	if !f.follow {
		return nil
	}
	return r.Follow(ctx, func(l logview.Line) error { return errors.Join(show(l), buffered.Flush()) })
}

// lastState reads the state of the run directory's mesh, which may have ended.
func (t *target) lastState() (*runstate.State, error) {
	dir, err := rundir.Abs(t.runDir)
	if err != nil {
		return nil, err
	}
	state, err := runstate.Read(dir)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return t.state() // for its error, which names the remedy
	}
	return state, err
}

// meshProcess is a process of the mesh with its log; pod is nil for a service.
type meshProcess struct {
	name, log string
	// program is a service's binary, "xds-server" of xds-server-0.
	program string
	pod     *runstate.Pod
}

// processes lists `fairlead up` itself, the services, and the processes of the Pods.
func processes(s *runstate.State) []meshProcess {
	list := []meshProcess{{name: "fairlead", log: rundir.Layout{Dir: s.RunDir}.Log("fairlead")}}
	for _, svc := range s.Services {
		list = append(list, meshProcess{name: svc.Name, log: svc.Log, program: svc.Program})
	}
	for i := range s.Pods {
		pod := &s.Pods[i]
		for _, c := range pod.Containers {
			list = append(list, meshProcess{name: c.Name, log: c.Log, pod: pod})
		}
		if pod.Agent != nil {
			list = append(list, meshProcess{name: pod.Agent.Name, log: pod.Agent.Log, pod: pod})
		}
	}
	return list
}

// sources returns the logs that names and flags choose, in the order of processes.
func (f logFlags) sources(s *runstate.State, names []string) ([]logview.Source, error) {
	selector, err := f.labels()
	if err != nil {
		return nil, err
	}
	if f.namespace != "" {
		if err := knownNamespace(s, f.namespace); err != nil {
			return nil, err
		}
	}
	all := processes(s)
	// With a flag about Pods, no name means all Pods and no services.
	podsOnly := f.namespace != "" || f.container != "" || selector != nil
	chosen := make([]bool, len(all))
	for i, p := range all {
		chosen[i] = len(names) == 0 && (p.pod != nil || !podsOnly)
	}
	for _, name := range names {
		if err := f.selectByName(all, chosen, name); err != nil {
			return nil, err
		}
	}
	var list []logview.Source
	var containers []string
	for i, p := range all {
		if !chosen[i] {
			continue
		}
		if p.pod != nil {
			_, container, _ := strings.Cut(p.name, "/")
			containers = append(containers, container)
			if f.namespace != "" && p.pod.Namespace != f.namespace || f.container != "" && container != f.container ||
				selector != nil && !selector.Matches(labels.Set(p.pod.Labels)) {
				continue
			}
		}
		list = append(list, logview.Source{Name: p.name, Path: p.log})
	}
	if len(list) > 0 {
		return list, nil
	}
	if f.container != "" && !slices.Contains(containers, f.container) {
		slices.Sort(containers)
		containers = slices.Compact(containers)
		return nil, fmt.Errorf("no container %q%s; there are %s", f.container, nearest.Hint(f.container, containers),
			strings.Join(containers, ", "))
	}
	return nil, errors.New("no process has all that the flags ask for; `fairlead logs` without them shows all")
}

// selectByName sets chosen for the processes that a name means: a process, a program or a Pod.
func (f logFlags) selectByName(all []meshProcess, chosen []bool, name string) error {
	found := false
	var services []string
	var pods []proxyname.Proxy
	for i, p := range all {
		if p.name == name || p.program == name {
			chosen[i], found = true, true
		}
		if p.pod == nil {
			services = append(services, p.name)
			if p.program != "" {
				services = append(services, p.program)
			}
			continue
		}
		if one := (proxyname.Proxy{Name: p.pod.Name, Namespace: p.pod.Namespace, Workload: p.pod.Workload}); !slices.Contains(pods, one) {
			pods = append(pods, one)
		}
	}
	if found {
		return nil
	}
	wanted, err := proxyname.Parse(name, f.namespace)
	if err != nil {
		return usage(err)
	}
	matches, err := wanted.Find(pods)
	if missing := new(proxyname.NotFoundError); errors.As(err, &missing) {
		var names []string
		for _, p := range all {
			if p.pod != nil {
				names = append(names, p.pod.Name, p.pod.ID(), p.pod.Workload)
			}
		}
		slices.Sort(services)
		return fmt.Errorf("no process and no Pod is named %q%s; there are %s", name, nearest.Hint(name, append(names, services...)),
			strings.Join(append(slices.Compact(services), missing.There...), ", "))
	}
	if err != nil {
		return err
	}
	for _, m := range matches {
		for i, p := range all {
			if p.pod != nil && p.pod.Name == pods[m].Name && p.pod.Namespace == pods[m].Namespace {
				chosen[i] = true
			}
		}
	}
	return nil
}

// knownNamespace returns a *namespaceError if no Pod is in the namespace.
func knownNamespace(s *runstate.State, name string) error {
	there := lists.Map(s.Pods, func(p runstate.Pod) string { return p.Namespace })
	slices.Sort(there)
	if there = slices.Compact(there); !slices.Contains(there, name) {
		return &namespaceError{name, there}
	}
	return nil
}

// completeLogs completes names of processes and Pods.
func (t *target) completeLogs(_ *cobra.Command, a []string, begun string) ([]string, cobra.ShellCompDirective) {
	state, err := t.lastState()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var list []string
	for _, p := range processes(state) {
		if list = append(list, p.name); p.pod != nil {
			list = append(list, p.pod.ID())
		} else if p.program != "" {
			list = append(list, p.program)
		}
	}
	list = slices.DeleteFunc(list, func(name string) bool { return slices.Contains(a, name) })
	return withPrefix(list, begun), cobra.ShellCompDirectiveNoFileComp
}

// completeContainers completes names of Pods' processes.
func (t *target) completeContainers(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	var list []string
	if state, err := t.lastState(); err == nil {
		for _, p := range processes(state) {
			if _, container, ok := strings.Cut(p.name, "/"); ok {
				list = append(list, container)
			}
		}
	}
	return withPrefix(list, begun), cobra.ShellCompDirectiveNoFileComp
}

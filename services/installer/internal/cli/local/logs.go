package local

import (
	"bufio"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/nearest"
	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/complete"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/local/logview"
	"fairlead.dev/services/installer/internal/local/rundir"
	"fairlead.dev/services/installer/internal/meshclient"
)

// logFlags are the flags of `fairlead logs`.
type logFlags struct {
	logview.Choice
	follow bool
	tail   int
	since  time.Duration
	level  string
	prefix bool
	// defaultTail and defaultPrefix are true if the flag is not given.
	defaultTail, defaultPrefix bool
}

// severalTail is the default of --tail for several logs.
const severalTail = 20

func newLogs(flags *meshflags.Flags) *cobra.Command {
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
		ValidArgsFunction: completeLogs(flags),
		RunE: func(cmd *cobra.Command, a []string) error {
			f.defaultTail, f.defaultPrefix = !cmd.Flags().Changed("tail"), !cmd.Flags().Changed("prefix")
			f.Names = a
			return f.run(cmd, flags.Machine())
		},
	}
	fs := cmd.Flags()
	flags.AddSelection(cmd, &f.Selection, "of the Pods (default: all)")
	meshflags.AddSelector(cmd, &f.Selection, "Pod's labels")
	fs.StringVarP(&f.Container, "container", "c", "", "only this process of Pods: a container, or istio-proxy")
	fs.BoolVarP(&f.follow, "follow", "f", false, "go on with new lines until Ctrl-C")
	fs.IntVar(&f.tail, "tail", -1, fmt.Sprintf("how many of the last lines of each log, -1 for all (default: all of one log, %d of several)",
		severalTail))
	fs.DurationVar(&f.since, "since", 0, "only lines younger than this, as 10m")
	fs.StringVar(&f.level, "level", "debug", "only lines of this level and above: "+strings.Join(logview.LevelNames, ", "))
	fs.BoolVar(&f.prefix, "prefix", false, "begin each line with the name of its log (default: if there are several)")
	_ = cmd.RegisterFlagCompletionFunc("container", completeContainers(flags))
	complete.Flag(cmd, "level", logview.LevelNames...)
	return cmd
}

func (f logFlags) run(cmd *cobra.Command, mesh *meshclient.Mesh) error {
	level, ok := logview.ParseLevel(f.level)
	if !ok {
		return process.Usagef("--level %q is none of %s%s", f.level, strings.Join(logview.LevelNames, ", "),
			nearest.Hint(f.level, logview.LevelNames))
	}
	if f.since < 0 {
		return process.Usagef("--since %s is negative", f.since)
	}
	state, err := mesh.LastState()
	if err != nil {
		return err
	}
	sources, err := f.Sources(state)
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
	buffered := bufio.NewWriter(cmd.OutOrStdout())
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
		fmt.Fprintf(cmd.ErrOrStderr(), "no line to show in %s\n", filepath.Join(state.RunDir, "logs"))
	}
	if !f.follow {
		return nil
	}
	return r.Follow(cmd.Context(), func(l logview.Line) error { return errors.Join(show(l), buffered.Flush()) })
}

// completeLogs completes names of processes and Pods.
func completeLogs(flags *meshflags.Flags) complete.Func {
	return complete.Names(func(_ *cobra.Command, a []string) (list []string) {
		state, err := flags.Machine().LastState()
		if err != nil {
			return nil
		}
		for _, p := range rundir.Processes(state) {
			if list = append(list, p.Name); p.Pod != nil {
				list = append(list, p.Pod.ID())
			} else if p.Program != "" {
				list = append(list, p.Program)
			}
		}
		return slices.DeleteFunc(list, func(name string) bool { return slices.Contains(a, name) })
	})
}

// completeContainers completes names of Pods' processes.
func completeContainers(flags *meshflags.Flags) complete.Func {
	return complete.Names(func(*cobra.Command, []string) (list []string) {
		state, err := flags.Machine().LastState()
		if err != nil {
			return nil
		}
		for _, p := range rundir.Processes(state) {
			if _, container, ok := strings.Cut(p.Name, "/"); ok {
				list = append(list, container)
			}
		}
		return list
	})
}

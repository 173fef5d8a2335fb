package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/terminal"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/fileflag"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/local"
	"fairlead.dev/services/installer/internal/local/console"
	"fairlead.dev/services/installer/internal/local/meshfile"
	"fairlead.dev/services/installer/internal/local/plan"
	"fairlead.dev/services/installer/internal/local/ports"
	"fairlead.dev/services/installer/internal/local/programs"
	"fairlead.dev/services/installer/internal/local/rundir"
	"fairlead.dev/services/installer/internal/objectfile"
)

// defaultFileGrace is how long the objects of a mesh file stay in force after the file is gone, empty or cut off.
const defaultFileGrace = 30 * time.Second

// upFlags are the flags of `fairlead up`.
type upFlags struct {
	files         []string
	xdsServers    int
	loopbackRange string
	binDir, envoy string
	trustDomain   string
	logLevel      string
	fileGrace     time.Duration
	drain         time.Duration
	readyFile     string
	readyTimeout  time.Duration
	detach        bool
}

func newUp(env command.Env, flags *meshflags.Flags) *cobra.Command {
	var f upFlags
	cmd := &cobra.Command{
		Use:   "up [-f FILE|DIR]...",
		Short: "Run a mesh on this machine",
		Long: `Run a mesh on this machine, on loopback addresses, without root and without Kubernetes: ca, config-watcher, xds-servers and, for each
Pod of the Deployments in the mesh files, its application, its node-agent and its Envoy.

The files hold Kubernetes' and Istio's own kinds. Deployments are run: a container's command is started as a process, with the port
to listen on in PORT and its sidecar in HTTP_PROXY. All other objects are followed live: edit the file, and the mesh changes.

Ctrl-C drains the proxies, ends everything and leaves no process behind.`,
		Example: "  fairlead up -f samples/bookinfo/mesh.yaml",
		Args:    fileflag.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.detach {
				return detach(cmd.Context(), env, flags.RunDir(), f, cmd.OutOrStdout())
			}
			return up(cmd.Context(), env, flags.RunDir(), f)
		},
	}
	fs := cmd.Flags()
	fileflag.Add(fs, &f.files, "mesh file, or directory of mesh files")
	fs.IntVar(&f.xdsServers, "xds-servers", 2, "how many xds-servers run")
	fs.StringVar(&f.loopbackRange, "loopback-range", ports.DefaultRange,
		"loopback addresses to use; \"auto\" takes a range that no other mesh uses")
	fs.StringVar(&f.binDir, "bin-dir", "", "directory of the programs (default: that of fairlead)")
	fs.StringVar(&f.envoy, "envoy", "", "Envoy binary (default: $ENVOY, then envoy in --bin-dir, .tools beside it, PATH)")
	fs.StringVar(&f.trustDomain, "trust-domain", "", "trust domain (default: that of MeshConfig in the files, or cluster.local)")
	fs.StringVar(&f.logLevel, "log-level", "info", "log level of Fairlead's processes: debug, info, warn or error")
	fs.DurationVar(&f.fileGrace, "file-grace-period", defaultFileGrace,
		"how long the objects of a mesh file stay in force that is gone, empty or cut off; at least 1s")
	fs.DurationVar(&f.drain, "drain", 5*time.Second, "how long proxies may take to finish requests when the mesh stops")
	fs.StringVar(&f.readyFile, "ready-file", "", "file that is written when everything is ready")
	fs.DurationVar(&f.readyTimeout, "ready-timeout", 0, "give up if not everything is ready by then; 0 waits for ever")
	fs.BoolVar(&f.detach, "detach", false, "return when everything is ready and leave the mesh running; fairlead down ends it")
	return cmd
}

// check refuses values of flags that are out of range.
func (f upFlags) check() error {
	var level slog.Level
	switch {
	case level.UnmarshalText([]byte(f.logLevel)) != nil:
		return fmt.Errorf("--log-level %q is none of debug, info, warn, error", f.logLevel)
	case f.fileGrace < time.Second:
		return fmt.Errorf("--file-grace-period %s is less than 1s, which an editor may take to replace a file", f.fileGrace)
	case f.drain < 0:
		return fmt.Errorf("--drain %s is negative", f.drain)
	case f.readyTimeout < 0:
		return fmt.Errorf("--ready-timeout %s is negative", f.readyTimeout)
	}
	paths, err := absolute(f.files)
	if err != nil {
		return err
	}
	for i, p := range paths {
		if slices.Contains(paths[:i], p) {
			return fmt.Errorf("-f names %s twice", f.files[i])
		}
	}
	return nil
}

// up runs a mesh until ctx ends: it reserves a loopback range, plans the processes, locks the run directory and runs
// local.Node.
func up(ctx context.Context, env command.Env, runDir string, f upFlags) error {
	if err := f.check(); err != nil {
		return process.Usage(err)
	}
	// SIGHUP, the end of the terminal, stops the mesh as Ctrl-C does.
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP)
	defer stop()

	dir, err := rundir.Abs(runDir)
	if err != nil {
		return err
	}
	reserved, err := f.reserve(dir)
	if err != nil {
		return err
	}
	defer reserved.Release()
	p, opts, err := f.plan(env, dir, reserved.Prefix)
	if err != nil {
		return err
	}
	lock, err := rundir.Acquire(opts.Layout)
	if err != nil {
		return err
	}
	defer lock.Release()
	if err := local.CheckPorts(p); err != nil {
		return err
	}
	return f.run(ctx, env, p, opts)
}

// starting is the first line that `up` prints.
func (f upFlags) starting(p *plan.Plan, logs string) string {
	says := fmt.Sprintf("starting %d services and %d Pods; logs are in %s", len(p.Services), len(p.Pods), logs)
	if len(f.files) == 0 {
		says += "; no file is named with -f, so there is no Pod to run: `fairlead config apply` adds objects of other kinds"
	}
	return says
}

// kept are the flags, beside -f and --run-dir, by which the mesh differs from another of the same files.
func (f upFlags) kept() []string {
	var list []string
	if f.loopbackRange != ports.DefaultRange {
		list = append(list, "--loopback-range", f.loopbackRange)
	}
	if f.envoy != "" {
		list = append(list, "--envoy", f.envoy)
		if abs, err := rundir.Abs(f.envoy); err == nil {
			list[len(list)-1] = abs
		}
	}
	return list
}

func (f upFlags) run(ctx context.Context, env command.Env, p *plan.Plan, opts plan.Options) error {
	layout := opts.Layout
	if err := os.MkdirAll(layout.Logs(), 0o700); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	logFile, err := os.OpenFile(layout.Log("fairlead"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("log file: %w", err)
	}
	defer logFile.Close()
	var level slog.Level
	_ = level.UnmarshalText([]byte(f.logLevel)) // checked
	log := slog.New(slog.NewJSONHandler(logFile, &slog.HandlerOptions{Level: level}))

	screen := newConsole(env)
	for _, w := range p.Warnings {
		screen.Line("warning: " + w)
	}
	if f.readyFile != "" {
		if err := os.Remove(f.readyFile); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("ready file: %w", err)
		}
	}
	node, err := local.New(local.Config{
		Plan: p, Layout: layout, Clock: clock.Real(), Log: log, Console: screen,
		EnvoyBinary: opts.Envoy, ConfigPaths: opts.ConfigPaths,
		ReadyFile: f.readyFile, ReadyTimeout: f.readyTimeout,
		StopTimeout: f.drain + 30*time.Second,
	})
	if err != nil {
		return err
	}
	if err := rundir.WriteFlags(layout, f.kept()); err != nil {
		return err
	}
	screen.Line(f.starting(p, layout.Logs()))
	err = node.Run(ctx)
	if _, ok := errors.AsType[*local.RefusedError](err); ok {
		return process.Refused(err)
	}
	return err
}

// reserve reserves the loopback range of the flags for the mesh in a run directory.
func (f upFlags) reserve(runDir string) (*ports.Reservation, error) {
	by := ports.Mesh{PID: os.Getpid(), RunDir: runDir}
	if f.loopbackRange == ports.Auto {
		return ports.ReserveAuto(by)
	}
	p, err := netip.ParsePrefix(f.loopbackRange)
	if err != nil {
		return nil, process.Usagef("--loopback-range %q is no address range; write one like %s, or %s", f.loopbackRange, ports.DefaultRange,
			ports.Auto)
	}
	return ports.Reserve(p, by)
}

// plan reads the mesh files and plans what to run.
func (f upFlags) plan(env command.Env, dir string, prefix netip.Prefix) (p *plan.Plan, opts plan.Options, err error) {
	m, err := meshfile.Load(f.files)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, opts, process.Usage(err)
	}
	if err != nil {
		return nil, opts, process.Refused(err)
	}
	for _, path := range m.Blank {
		if slices.Contains(f.files, path) {
			return nil, opts, fileflag.HoldsNone(path)
		}
	}
	find := env.Programs(f.binDir)
	envoy, err := find.Envoy(f.envoy)
	if err != nil {
		return nil, opts, err
	}
	td := cmp.Or(f.trustDomain, m.Config.TrustDomain, "cluster.local")
	configPaths, err := absolute(f.files)
	if err != nil {
		return nil, opts, err
	}
	opts = plan.Options{
		Layout: rundir.NewLayout(dir, plan.LongestPodID(m)),
		Range:  prefix, XDSServers: f.xdsServers, TrustDomain: td, ConfigPaths: configPaths,
		LogLevel: f.logLevel, Drain: f.drain, FileGrace: f.fileGrace, Find: find.Program, Envoy: envoy,
		FreePort: ports.NewFree(dir).Port,
		BaseEnv:  programs.BaseEnv(env.Getenv),
	}
	p, err = plan.New(m, opts)
	if err != nil {
		return nil, opts, planError(err)
	}
	for _, path := range m.Blank {
		p.Warnings = append(p.Warnings, path+": holds no object")
	}
	return p, opts, nil
}

// planError gives an error of plan.New its exit code: mistakes in mesh files are refused input, those in flags wrong
// usage.
func planError(err error) error {
	var (
		bad     *objectfile.Error
		missing *programs.NotFoundError
	)
	switch {
	case errors.As(err, &bad):
		return process.Refused(err)
	case errors.As(err, &missing):
		return err
	}
	return process.Usage(err)
}

func absolute(paths []string) ([]string, error) {
	var out []string
	for _, p := range paths {
		abs, err := rundir.Abs(p)
		if err != nil {
			return nil, err
		}
		out = append(out, abs)
	}
	return out, nil
}

// newConsole returns a console that redraws a table on a terminal, and one that prints plain lines elsewhere.
func newConsole(env command.Env) console.Console {
	if file, ok := env.Out.(*os.File); ok && term.IsTerminal(int(file.Fd())) && env.Getenv("TERM") != "dumb" {
		return console.NewTerminal(file, clock.Real(), func() (int, int) {
			w, h, err := term.GetSize(int(file.Fd()))
			if err != nil {
				return 0, 24
			}
			return w, h
		})
	}
	return console.NewPlain(terminal.Safe(env.Out), clock.Real())
}

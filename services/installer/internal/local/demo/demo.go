// Package demo runs `fairlead demo`: it starts a mesh of the book shop and checks identities from real handshakes, a
// change of routing under traffic, the loss of an xds-server, the renewal of a certificate and the refusal of a broken
// object. Run prints each result and fails if one differs from what Fairlead promises. cli/demo.go calls it with a
// function that runs the mesh.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/proto/fairlead/runstate"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/envoyadmin"
	"fairlead.dev/services/installer/internal/local/rundir"
)

// Config of Run.
type Config struct {
	// Up runs the mesh until ctx ends and prints to out.
	Up func(ctx context.Context, out io.Writer) error
	// RunDir and ReadyFile are where Up keeps the mesh and says that it is ready.
	RunDir, ReadyFile string
	// Change shifts reviews to v3; Broken must be refused. Both are files.
	Change, Broken string
	// Requests is how many requests the first step sends.
	Requests int
	Out      io.Writer
}

// How long each part may take.
const (
	readyLimit     = 60 * time.Second
	stepLimit      = 20 * time.Second
	reconnectLimit = 5 * time.Second
	stopLimit      = 45 * time.Second
)

// demo is one Run.
type demo struct {
	cfg       Config
	state     *runstate.State
	client    *client
	configAPI *configapi.Client
	failed    []string
	// upErr is the result of Up; set before the channel ended is closed.
	upErr error
}

// ErrDiffers is the error of a Run in which a check failed.
var ErrDiffers = errors.New("the demonstration differs from what is promised")

// Run runs the demonstration. It goes on after a failed step, so that every step is shown.
func Run(ctx context.Context, cfg Config) error {
	d := &demo{cfg: cfg}
	began := time.Now()
	up, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan struct{})
	log, err := os.Create(filepath.Join(filepath.Dir(cfg.ReadyFile), "up.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	go func() {
		defer close(ended)
		d.upErr = cfg.Up(up, log)
	}()

	d.title("Bring the mesh up")
	if err := d.waitReady(ctx, ended); err != nil {
		stop()
		d.tearDown(ended)
		if ctx.Err() != nil {
			return ErrInterrupted
		}
		return errors.Join(err, d.output(log.Name()))
	}
	d.say("ready after %s: %s", millis(time.Since(began)), d.inventory())
	d.measuredOn(ctx)

	for _, step := range []struct {
		title string
		run   func(context.Context) error
	}{
		{fmt.Sprintf("%d requests through the ingress gateway", cfg.Requests), d.requests},
		{"Shift reviews to v3", d.shift},
		{"Kill an xds-server under traffic", d.killServer},
		{"Renew a certificate under traffic", d.renew},
		{"Apply a broken VirtualService", d.broken},
		{"What Envoy rejected", d.rejected},
	} {
		if ctx.Err() != nil {
			break
		}
		d.title(step.title)
		limited, cancel := context.WithTimeout(ctx, stepLimit)
		if err := step.run(limited); err != nil && ctx.Err() == nil {
			d.fail("%v", err)
		}
		cancel()
	}

	d.title("Tear down")
	stop()
	d.tearDown(ended)
	d.say("everything took %.1f s", time.Since(began).Seconds())
	if ctx.Err() != nil {
		return ErrInterrupted
	}
	if len(d.failed) > 0 {
		return fmt.Errorf("%w:\n  %s\nthe logs are in %s", ErrDiffers, strings.Join(d.failed, "\n  "), filepath.Join(cfg.RunDir, "logs"))
	}
	return nil
}

// ErrInterrupted is the error of a Run whose ctx ended early.
var ErrInterrupted = errors.New("the demonstration was interrupted: not everything was shown")

// errEnded says that Up returned before the mesh was ready.
var errEnded = errors.New("the mesh ended before it was ready")

// waitReady waits until the mesh is ready and connects to it.
func (d *demo) waitReady(ctx context.Context, ended <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	for {
		if _, err := os.Stat(d.cfg.ReadyFile); err == nil {
			break
		}
		select {
		case <-ended:
			return errEnded
		case <-ctx.Done():
			return fmt.Errorf("the mesh was not ready after %s", readyLimit)
		case <-time.After(10 * time.Millisecond):
		}
	}
	if err := d.reload(); err != nil {
		return err
	}
	if len(d.state.URLs) == 0 {
		return errors.New("the mesh files have no Gateway that selects a gateway Pod")
	}
	d.client = newClient(d.state.URLs[0].URL)
	var err error
	d.configAPI, err = configapi.Dial(configapi.Config{
		Address: d.state.ConfigWatcherAddress, RootFile: d.state.RootCertFile,
		TokenFile: d.state.AdminTokenFile, TrustDomain: d.state.TrustDomain,
	})
	return err
}

// reload reads state.json again: pids change when processes restart.
func (d *demo) reload() error {
	s, err := rundir.Open(d.cfg.RunDir)
	if err != nil {
		return err
	}
	d.state = s
	return nil
}

func (d *demo) inventory() string {
	kinds := map[string]int{}
	for _, p := range d.state.Pods {
		kinds[p.Kind]++
	}
	return fmt.Sprintf("%d services, %d gateway, %d sidecars, %s", len(d.state.Services), kinds["gateway"], kinds["sidecar"],
		d.state.URLs[0].URL)
}

// measuredOn prints the machine and the versions that the figures are for.
func (d *demo) measuredOn(ctx context.Context) {
	envoy := "unknown"
	for _, p := range d.proxies() {
		if v, err := envoyadmin.New(p.Agent.AdminSocket).Version(ctx); err == nil {
			envoy = v
			break
		}
	}
	d.say("measured on %d cores (%s/%s), %s, Envoy %s, everything on this one machine", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH,
		runtime.Version(), envoy)
}

// proxies lists the Pods that have an agent.
func (d *demo) proxies() []runstate.Pod {
	return lists.Filter(d.state.Pods, func(p runstate.Pod) bool { return p.Agent != nil })
}

// rejected checks that no proxy has rejected an update.
func (d *demo) rejected(ctx context.Context) error {
	var counters, rejected uint64
	for _, p := range d.proxies() {
		stats, err := envoyadmin.New(p.Agent.AdminSocket).Stats(ctx, "update_rejected$")
		if err != nil {
			return fmt.Errorf("%s: %w", p.ID(), err)
		}
		if len(stats) == 0 {
			d.fail("%s has no update_rejected counters", p.ID())
		}
		for name, n := range stats {
			counters++
			rejected += n
			if n > 0 {
				d.fail("%s: %s is %d", p.ID(), name, n)
			}
		}
	}
	d.check(rejected == 0, "%d update_rejected counters on %d proxies add up to %d", counters, len(d.proxies()), rejected)
	return nil
}

// tearDown waits until Up has returned, and checks that no process is left.
func (d *demo) tearDown(ended <-chan struct{}) {
	began := time.Now()
	select {
	case <-ended:
		if d.upErr != nil {
			d.fail("the mesh did not end cleanly: %v", d.upErr)
		}
	case <-time.After(stopLimit):
		d.fail("the mesh did not end within %s", stopLimit)
		return
	}
	if d.configAPI != nil {
		_ = d.configAPI.Close()
	}
	left := 0
	if d.state != nil {
		for _, p := range d.state.Processes() {
			if p.PID > 0 && p.Birth != "" && rundir.Birth(p.PID) == p.Birth {
				left++
				d.fail("%s still runs, pid %d", p.Name, p.PID)
			}
		}
	}
	d.check(left == 0, "drained and ended in %s, %d processes left", millis(time.Since(began)), left)
}

// output returns what the mesh printed, as an error.
func (d *demo) output(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	return fmt.Errorf("it printed:\n%s", text)
}

func (d *demo) title(s string) { fmt.Fprintf(d.cfg.Out, "\n== %s\n", s) }

func (d *demo) say(format string, a ...any) { fmt.Fprintf(d.cfg.Out, "   "+format+"\n", a...) }

// check prints a statement, as failed if ok is false.
func (d *demo) check(ok bool, format string, a ...any) {
	if !ok {
		d.fail(format, a...)
		return
	}
	fmt.Fprintf(d.cfg.Out, "ok "+format+"\n", a...)
}

func (d *demo) fail(format string, a ...any) {
	s := fmt.Sprintf(format, a...)
	fmt.Fprintln(d.cfg.Out, "FAILED "+s)
	d.failed = append(d.failed, s)
}

// failures shows each different error of the answers, and counts the failed ones.
func (d *demo) failures(list []answer) int {
	failed, kinds := failures(list)
	for _, k := range kinds {
		d.say("%s", k)
	}
	return failed
}

// millis formats a duration in milliseconds.
func millis(t time.Duration) string { return fmt.Sprintf("%.1f ms", float64(t.Microseconds())/1000) }

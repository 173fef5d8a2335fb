package suite

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/proto/fairlead/contract"
	contend "fairlead.dev/tests/bench/internal/contender"
	"fairlead.dev/tests/bench/internal/floor"
	"fairlead.dev/tests/bench/internal/machine"
	"fairlead.dev/tests/bench/internal/mesh"
	"fairlead.dev/tests/bench/internal/proxy"
	"fairlead.dev/tests/bench/internal/services"
	"fairlead.dev/tests/bench/internal/watcher"
	"fairlead.dev/tests/bench/internal/wire"
)

// lab is what all groups of rows share.
type lab struct {
	Options
	dir      string
	cores    *machine.Cores
	services *services.Services
	config   *svid.Manager // config-watcher's certificate
	log      io.Writer
	started  int
}

func newLab(ctx context.Context, o Options, log io.Writer) (*lab, error) {
	l := &lab{Options: o, dir: o.Keep, log: log}
	var err error
	if l.dir == "" {
		l.dir, err = os.MkdirTemp("", "fl-bench")
	} else {
		err = os.MkdirAll(l.dir, 0o700)
	}
	if err != nil {
		return nil, err
	}
	if l.BinDir, err = filepath.Abs(l.BinDir); err != nil {
		return nil, err
	}
	if o.Realtime {
		if err := machine.Realtime(); err != nil {
			return nil, err
		}
	}
	if l.cores, err = machine.Divide(); err != nil {
		return nil, err
	}
	if l.services, err = services.Start(ctx, l.BinDir, l.dir, l.cores); err != nil {
		return nil, err
	}
	l.config, err = l.services.Certificate(ctx, contract.SystemNamespace, contract.ConfigWatcherAccount)
	return l, err
}

func (l *lab) close() {
	if l.services != nil {
		l.services.Stop()
	}
	if l.Keep == "" {
		_ = os.RemoveAll(l.dir)
	}
}

// server is an xds-server's process.
type server struct {
	*services.Server
	plaintext string
}

// serve starts an xds-server that follows a config-watcher.
func (l *lab) serve(ctx context.Context, watcher string) (*server, error) {
	ports, err := machine.FreePorts(1)
	if err != nil {
		return nil, err
	}
	l.started++
	s := &server{plaintext: ports[0]}
	if s.Server, err = l.services.XDSServer(ctx, l.started, watcher, "--max-connection-age=-1s", "--plaintext-address",
		s.plaintext); err != nil {
		return nil, err
	}
	return s, quiet(ctx, s.Process, nil)
}

// profileFor is how long a profile takes.
const profileFor = 5 * time.Second

// profile keeps a CPU profile of the next seconds; done is closed when it is there.
func (l *lab) profile(ctx context.Context, s *server, name string) (done <-chan error) {
	out := make(chan error, 1)
	go func() { out <- l.fetchProfile(ctx, s, name) }()
	return out
}

func (l *lab) fetchProfile(ctx context.Context, s *server, name string) error {
	return l.fetch(ctx, s.Ops, fmt.Sprintf("profile?seconds=%d", int(profileFor.Seconds())), name)
}

// profiler keeps profiles, if they are asked for.
func (l *lab) profiler() contend.Profiler {
	if !l.Profile {
		return nil
	}
	return func(ctx context.Context, ops, name string) error {
		return l.fetch(ctx, ops, fmt.Sprintf("profile?seconds=%d", int(profileFor.Seconds())), name)
	}
}

// heap keeps a profile of what is live on a process's heap, if profiles are asked for.
func (l *lab) heap(ctx context.Context, ops, name string) error {
	if !l.Profile {
		return nil
	}
	return l.fetch(ctx, ops, "heap?gc=1", name)
}

// fetch reads one page of a process's profiles into a file.
func (l *lab) fetch(ctx context.Context, ops, page, name string) error {
	token, err := l.services.Token(contract.SystemNamespace, contract.AdminAccount, contract.AdminAudience)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/debug/pprof/%s", ops, page), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("profile: %s: %s", res.Status, raw)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(l.dir, name+".pprof"), raw, 0o600)
}

// fixture is a mesh with an xds-server, its proxies, and a floor with the same ones.
type fixture struct {
	*lab
	// group that the rows belong to.
	group   string
	spec    mesh.Spec
	watcher *watcher.Watcher
	server  *server
	fleet   *proxy.Fleet

	floor *floor.Process
	echo  *proxy.Fleet
	// sent is what the last change was before those that were measured.
	sent map[string][]*wire.Content

	// addCPU and addFloor are what a new service took.
	addCPU, addFloor time.Duration
}

func (l *lab) fixture(ctx context.Context, group string, spec mesh.Spec) (*fixture, error) {
	f := &fixture{lab: l, group: group, spec: spec, fleet: proxy.NewFleet(spec.Proxies())}
	var err error
	if f.watcher, err = watcher.Start(ctx, l.config, l.services.ID(contract.SystemNamespace, contract.XDSServerAccount),
		spec.Resources()); err != nil {
		return nil, err
	}
	f.server, err = l.serve(ctx, f.watcher.Address)
	return f, err
}

// connected is fixture with all sidecars connected and configured.
func (l *lab) connected(ctx context.Context, group string, spec mesh.Spec) (*fixture, error) {
	f, err := l.fixture(ctx, group, spec)
	if err == nil {
		_, err = f.connectAll(ctx, f.server, proxy.Target{Address: f.server.plaintext})
	}
	return f, err
}

func (f *fixture) close() {
	f.fleet.Close()
	f.closeFloor()
	if f.server != nil {
		f.server.Stop()
	}
	f.watcher.Stop()
}

func (f *fixture) closeFloor() {
	if f.echo != nil {
		f.echo.Close()
	}
	if f.floor != nil {
		f.floor.Stop()
	}
	f.echo, f.floor = nil, nil
}

// openFloor starts a floor, with a stream for each proxy if they are to be pushed to when told.
func (f *fixture) openFloor(ctx context.Context, files floor.Files, connected bool) (err error) {
	f.closeFloor()
	if f.floor, err = floor.Start(f.dir, &f.cores.Server, files); err != nil {
		return err
	}
	f.echo = proxy.NewFleet(f.spec.Proxies())
	if !connected {
		return nil
	}
	if err := f.echo.Connect(ctx, proxy.Target{Address: f.floor.Address}, proxy.Echo, func() {}); err != nil {
		return err
	}
	if err := f.floor.Wait(f.echo.Len()); err != nil {
		return err
	}
	return quiet(ctx, f.floor.Process, f.echo)
}

// tlsFor gives every namespace's proxies their certificates.
func (l *lab) tlsFor(ctx context.Context, spec mesh.Spec) (func(string) *tls.Config, error) {
	configs := map[string]*tls.Config{}
	for _, p := range spec.Proxies() {
		if configs[p.Namespace] != nil {
			continue
		}
		own, err := l.services.Certificate(ctx, p.Namespace, "default")
		if err != nil {
			return nil, err
		}
		configs[p.Namespace] = tlsconf.Client(own, l.services.ID(contract.SystemNamespace, contract.XDSServerAccount))
	}
	return func(namespace string) *tls.Config { return configs[namespace] }, nil
}

// Package trustbundle keeps the roots that the workload verifies with when its identity comes from the ca: those of the
// root file, until the ca's signed bundle comes by way of an xds-server and takes their place. The ca's signature makes
// a bundle one, so that an xds-server can hold a bundle back, and nothing else.
package trustbundle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/tlsconf"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/proto/fairlead/trust"
)

// The least time between two attempts to verify a bundle, each of which costs a signature's check: after one that
// verified, and after one that did not.
const (
	pause       = 250 * time.Millisecond
	failedPause = time.Second
)

// First has the roots to begin with, in the place of a file.
type First interface {
	tlsconf.Source
	// Run follows their changes until ctx ends.
	Run(ctx context.Context) error
}

// Store keeps the adopted bundle for the next start, in the place of a file. It is safe for concurrent use.
type Store interface {
	// Load returns what Save was given last; fs.ErrNotExist if there is nothing, ErrNotReady if that is not known yet,
	// in which case there are no roots until First has changed.
	Load() ([]byte, error)
	// Save is called with each adopted bundle. It must not wait for others.
	Save(text []byte) error
}

// ErrNotReady is why a Store has nothing yet.
var ErrNotReady = errors.New("it has not been read yet")

// Config of Roots. RootFile or First, CAs, TrustDomain, Log and Registerer are required.
type Config struct {
	// RootFile has the roots to begin with, in PEM; First, if it is set, is in its place.
	RootFile string
	First    First
	// Path is the file that keeps the adopted bundle for the next start, in a directory of the agent's own; "" keeps
	// none. Store, if it is set, is in its place.
	Path  string
	Store Store
	// CAs are the SPIFFE IDs that the ca may have.
	CAs         []string
	TrustDomain string
	// Metrics begins the names of the metrics, such as fairlead_node_agent.
	Metrics    string
	Clock      clock.Clock
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// Roots are the mesh's roots. It is a tlsconf.Source without certificates and safe for concurrent use.
type Roots struct {
	notify.Notifier
	cfg        Config
	files      First
	generation prometheus.Gauge
	failures   prometheus.Counter
	// turn is for one attempt at a time, which also has what follows: when the next one is allowed, the reason that was
	// logged last, and the bundle that was refused last.
	turn    chan struct{}
	next    time.Time
	said    string
	refused []byte
	// loading is held while Path or Store is read, which is done once it answers.
	loading sync.Mutex
	loaded  bool

	mu      sync.Mutex
	adopted *adopted // nil before the first
	// current was made of these two.
	current, file *tlsconf.Material
	of            *adopted
}

var _ tlsconf.Source = (*Roots)(nil)

// New makes Roots. Run follows the root file.
func New(c Config) *Roots {
	c.Clock = clock.Or(c.Clock)
	f := promauto.With(c.Registerer)
	if c.First == nil {
		c.First = tlsconf.NewFiles(tlsconf.FilesConfig{RootFile: c.RootFile, Clock: c.Clock, Log: c.Log})
	}
	if c.Store == nil && c.Path != "" {
		c.Store = fileStore{c.Path}
	}
	return &Roots{
		cfg:   c,
		files: c.First,
		turn:  make(chan struct{}, 1),
		generation: f.NewGauge(prometheus.GaugeOpts{
			Name: c.Metrics + "_mesh_bundle_generation",
			Help: "Generation of the ca's trust bundle that the process verifies with; 0 before the first.",
		}),
		failures: f.NewCounter(prometheus.CounterOpts{
			Name: c.Metrics + "_mesh_bundle_failures_total",
			Help: "Trust bundles of the ca, or of xds-servers, that were refused.",
		}),
	}
}

// Run follows the root file until ctx ends.
func (r *Roots) Run(ctx context.Context) error {
	go func() {
		for {
			changed := r.files.Changed()
			r.Notify() // what has changed before that
			r.again(ctx)
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
		}
	}()
	return r.files.Run(ctx)
}

// Current returns the roots: those of the adopted bundle with the new ones of the root file, or those of the root file.
func (r *Roots) Current() (*tlsconf.Material, error) {
	if err := r.restored(); err != nil {
		return nil, err
	}
	file, err := r.files.Current()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.adopted == nil {
		return file, err
	}
	if err != nil {
		file = nil // the bundle alone serves
	}
	if r.current != nil && r.file == file && r.of == r.adopted {
		return r.current, nil
	}
	known, err := knownOf(r.adopted, file)
	if err != nil {
		return nil, err
	}
	m, err := materialOf(known, file)
	if err != nil {
		return nil, err
	}
	if r.current == nil || !bytes.Equal(m.RootsPEM, r.current.RootsPEM) {
		r.current = m
	}
	r.file, r.of = file, r.adopted
	return r.current, nil
}

func knownOf(a *adopted, file *tlsconf.Material) (known, error) {
	k := known{adopted: a}
	if file == nil {
		return k, nil
	}
	var err error
	k.file, err = tlsconf.ParseAuthorities(file.RootsPEM)
	return k, err
}

// materialOf makes the material of the roots: the root file's own if it has the same ones, so that nothing that depends
// on it changes.
func materialOf(k known, file *tlsconf.Material) (*tlsconf.Material, error) {
	roots := k.roots()
	if file != nil && sumsOf(roots).equal(sumsOf(k.file)) {
		return file, nil
	}
	var text []byte
	for _, c := range roots {
		text = append(text, tlsconf.EncodeCertificate(c)...)
	}
	return tlsconf.NewMaterial(nil, nil, text)
}

// Take adopts a signed bundle of an xds-server, a fairlead.ca.v1.SignedBundle. If it returns an error, what was adopted
// before stays. It may wait until the next attempt is allowed; ctx ends that.
func (r *Roots) Take(ctx context.Context, a *anypb.Any) error {
	if err := r.restored(); err != nil {
		return fmt.Errorf("trust bundle: %w", err)
	}
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if a.GetTypeUrl() != contract.SignedBundleType {
		return r.refuse(fmt.Errorf("trust bundle: it is of type %q", a.GetTypeUrl()))
	}
	r.mu.Lock()
	same := r.adopted != nil && bytes.Equal(r.adopted.signed, a.GetValue())
	r.mu.Unlock()
	if same {
		return nil // every new stream brings it
	}
	if wait := r.next.Sub(r.cfg.Clock.Now()); wait > 0 && !clock.Sleep(ctx, r.cfg.Clock, min(wait, failedPause)) {
		return ctx.Err()
	}
	if size := len(a.GetValue()); size > trust.MaxBytes {
		return r.refuse(fmt.Errorf("trust bundle: it has %d bytes, more than %d", size, trust.MaxBytes))
	}
	raw := bytes.Clone(a.GetValue())
	if err := r.attempt(raw); err != nil {
		r.refused = raw
		return r.refuse(err)
	}
	return nil
}

// again tries the bundle that was refused last once more, because the root file may have changed: an agent that has
// missed a rotation gets the new root by the file. The xds-server learns of it on the next stream.
func (r *Roots) again(ctx context.Context) {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return
	}
	if r.refused != nil {
		_ = r.attempt(r.refused) // it was refused before
	}
}

// attempt adopts an encoded bundle, if it verifies.
func (r *Roots) attempt(raw []byte) error {
	before, err := r.state()
	if err != nil {
		return err
	}
	s := &cav1.SignedBundle{}
	if err := proto.Unmarshal(raw, s); err != nil {
		return fmt.Errorf("trust bundle: %w", err)
	}
	got, err := before.take(s, verifier{cas: r.cfg.CAs, trustDomain: r.cfg.TrustDomain, now: r.cfg.Clock.Now()})
	if err != nil {
		return err
	}
	got.signed = raw
	r.next, r.said, r.refused = r.cfg.Clock.Now().Add(pause), "", nil
	r.adopt(got)
	r.cfg.Log.Info("trust bundle of the ca adopted", "generation", got.generation, "epoch", got.epoch, "roots", len(got.roots),
		"tainted", len(got.tainted), "new_roots_of_file", len(known{got, before.file}.fresh()))
	r.keep(got)
	return nil
}

// state is what is known now.
func (r *Roots) state() (known, error) {
	file, err := r.files.Current()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		file = nil
		if r.adopted == nil {
			return known{}, fmt.Errorf("trust bundle: there are no roots to verify it with: %w", err)
		}
	}
	return knownOf(r.adopted, file)
}

func (r *Roots) adopt(a *adopted) {
	r.mu.Lock()
	r.adopted = a
	r.mu.Unlock()
	r.generation.Set(float64(a.generation))
	r.Notify()
}

// maxReason bounds what is quoted of a refused bundle, in bytes: names in it may be long.
const maxReason = 512

// refuse counts and logs an error, once until there is another.
func (r *Roots) refuse(err error) error {
	if text := err.Error(); len(text) > maxReason {
		err = errors.New(strings.ToValidUTF8(text[:maxReason], "") + "…")
	}
	r.next = r.cfg.Clock.Now().Add(failedPause)
	r.failures.Inc()
	if err.Error() != r.said {
		r.said = err.Error()
		r.cfg.Log.Error("trust bundle is refused, the last one stays", "error", err)
	}
	return err
}

// Tainted are the key identifiers of authorities whose certificates are to be renewed now.
func (r *Roots) Tainted() [][]byte {
	_ = r.restored()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.adopted == nil {
		return nil
	}
	return r.adopted.tainted
}

// Revocations are the lists of revoked certificates of the adopted bundle, in DER; mostly none. The caller must not
// change them.
func (r *Roots) Revocations() [][]byte {
	_ = r.restored()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.adopted == nil {
		return nil
	}
	return r.adopted.lists
}

package consultest

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Fake answers over HTTPS, with HTTP/2, what a reader of a catalog asks of Consul without ACLs: catalog/services,
// health/service and internal/acl/authorize, with readings that wait. It takes more services and changes a second than
// a Consul on the machine of a test. StartFake makes one.
type Fake struct {
	// URL is the address, CA the certificate that verifies it, in PEM.
	URL string
	CA  []byte

	server   *httptest.Server
	requests atomic.Uint64
	answered func(service string)

	mu    sync.Mutex
	raft  uint64
	names faked
	// gone is the index of the newest end of a service.
	gone     uint64
	services map[string]*faked
	// lie answers readings in place of the Fake; nil if nobody does.
	lie http.HandlerFunc
}

// faked is one thing that is read.
type faked struct {
	index uint64
	// changed is closed when there is a newer index.
	changed chan struct{}
	// entries are the instances in JSON, sorted by key.
	entries []fakedInstance
}

type fakedInstance struct {
	key     string
	content []byte
}

// StartFake starts a Fake on loopback, which Stop ends. answered is called each time that an answer about a service is
// written, from any goroutine; it may be nil.
func StartFake(answered func(service string)) *Fake {
	f := &Fake{raft: 10, gone: 1, names: newFaked(10), services: map[string]*faked{}, answered: answered}
	f.server = httptest.NewUnstartedServer(f)
	f.server.EnableHTTP2 = true
	f.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo) // of clients that do not trust it
	f.server.StartTLS()
	f.URL = f.server.URL
	f.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.server.Certificate().Raw})
	f.Set("consul", Instance("server", "consul", "consul", "passing")) // as servers do
	return f
}

// Roots verify the Fake.
func (f *Fake) Roots() *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AddCert(f.server.Certificate())
	return roots
}

// Stop ends it, with all that waits.
func (f *Fake) Stop() {
	f.server.CloseClientConnections()
	f.server.Close()
}

// Disconnect closes all connections, as an agent that restarts does.
func (f *Fake) Disconnect() { f.server.CloseClientConnections() }

// Requests counts the requests since the start.
func (f *Fake) Requests() uint64 { return f.requests.Load() }

// Lie has a function answer all readings that begin from now on; nil ends that.
func (f *Fake) Lie(answer http.HandlerFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lie = answer
}

func newFaked(index uint64) faked { return faked{index: index, changed: make(chan struct{})} }

// advance gives a thing an index and wakes who waits for it.
func (s *faked) advance(index uint64) {
	s.index = index
	close(s.changed)
	s.changed = make(chan struct{})
}

// Set replaces the instances of a service; without any the service is gone.
func (f *Fake) Set(service string, all ...Registration) {
	entries := make([]fakedInstance, len(all))
	for i := range all {
		entries[i] = entryOf(&all[i])
	}
	slices.SortFunc(entries, func(a, b fakedInstance) int { return strings.Compare(a.key, b.key) })
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.services[service]
	if s == nil && len(all) == 0 {
		return
	}
	f.raft++
	switch {
	case s == nil:
		made := newFaked(f.raft)
		made.entries = entries
		f.services[service] = &made
		f.names.advance(f.raft)
	case len(all) == 0:
		delete(f.services, service)
		f.gone = f.raft
		s.entries = nil
		s.advance(f.raft)
		f.names.advance(f.raft)
	default:
		s.entries = entries
		s.advance(f.raft)
	}
}

// Change registers one instance of a service that exists again, with another health for example. The names do not
// change by it.
func (f *Fake) Change(r Registration) {
	entry := entryOf(&r)
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.services[r.Service.Service]
	at, there := slices.BinarySearchFunc(s.entries, entry.key, func(e fakedInstance, key string) int { return strings.Compare(e.key, key) })
	if s.entries = slices.Clone(s.entries); there {
		s.entries[at] = entry
	} else {
		s.entries = slices.Insert(s.entries, at, entry)
	}
	f.raft++
	s.advance(f.raft)
}

// entryOf is an instance as health/service answers it.
func entryOf(r *Registration) fakedInstance {
	s := *r.Service
	checks := slices.Clone(r.Checks)
	if r.Check != nil {
		checks = append(checks, *r.Check)
	}
	content, err := json.Marshal(map[string]any{
		"Node": map[string]any{"Node": r.Node, "Address": r.Address, "Datacenter": "dc1", "Meta": r.NodeMeta},
		"Service": map[string]any{"Kind": s.Kind, "ID": s.ID, "Service": s.Service, "Address": s.Address, "Port": s.Port, "Ports": s.Ports,
			"Tags": s.Tags, "Meta": s.Meta, "Weights": s.Weights, "Locality": s.Locality},
		"Checks": checks,
	})
	if err != nil {
		panic(err) // it has strings and numbers alone
	}
	return fakedInstance{cmp.Or(r.Node, "node") + "/" + s.ID, content}
}

const (
	fakeNames     = "/v1/catalog/services"
	fakeInstances = "/v1/health/service/"
	fakeAuthorize = "/v1/internal/acl/authorize"
)

// ServeHTTP implements http.Handler.
func (f *Fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.requests.Add(1)
	f.mu.Lock()
	lie := f.lie
	f.mu.Unlock()
	service, isService := strings.CutPrefix(r.URL.Path, fakeInstances)
	switch {
	case r.URL.Path == fakeAuthorize:
		http.Error(w, "ACL support disabled", http.StatusUnauthorized)
		return
	case lie != nil:
		lie(w, r)
		return
	case r.URL.Path != fakeNames && !isService:
		http.NotFound(w, r)
		return
	}
	if !isService {
		service = ""
	}
	content, index := f.read(r, service)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Consul-Index", strconv.FormatUint(index, 10))
	w.Header().Set("X-Consul-KnownLeader", "true")
	w.Header().Set("X-Consul-LastContact", "0")
	if f.answered != nil && isService {
		f.answered(service)
	}
	_, _ = w.Write(content) // the client may be gone
}

// read is what is at a path, once it is newer than the index of the request, or when the time is up. service is "" for
// the names.
func (f *Fake) read(r *http.Request, service string) (content []byte, index uint64) {
	query := r.URL.Query()
	known, _ := strconv.ParseUint(query.Get("index"), 10, 64) // 0: does not wait
	within, err := time.ParseDuration(query.Get("wait"))
	if err != nil {
		within = 5 * time.Minute
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	for expired := known == 0; ; {
		f.mu.Lock()
		content, index, changed := f.now(service)
		f.mu.Unlock()
		if index != known || expired {
			return content(), index
		}
		select {
		case <-changed:
		case <-timer.C:
			expired = true
		case <-r.Context().Done():
			return nil, index
		}
	}
}

// now is called with mu held; content is not.
func (f *Fake) now(service string) (content func() []byte, index uint64, changed <-chan struct{}) {
	if service == "" {
		names := make(map[string][]string, len(f.services))
		for name := range f.services {
			names[name] = []string{}
		}
		return func() []byte {
			out, err := json.Marshal(names)
			if err != nil {
				panic(err) // it is of strings
			}
			return out
		}, f.names.index, f.names.changed
	}
	s := f.services[service]
	if s == nil {
		// As in Consul it wakes when any service comes or goes.
		return func() []byte { return []byte("[]") }, f.gone, f.names.changed
	}
	entries := s.entries
	return func() []byte {
		var out bytes.Buffer
		for i, e := range entries {
			fmt.Fprintf(&out, "%s%s", []string{"[", ","}[min(i, 1)], e.content)
		}
		out.WriteByte(']')
		return out.Bytes()
	}, s.index, s.changed
}

package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"fairlead.dev/pkg/notify"
)

// state is what a catalog holds; it is never changed.
type state struct {
	services map[string]registered
	// index is that of the names, gone that of the newest end of a service.
	index, gone uint64
}

type registered struct {
	index     uint64
	instances map[key]entry
}

// lies are how a fake answers wrongly, as real parts do.
type lies struct {
	Cut, Torn, NoLeader, UnknownLeader, OldContact, TooMany, Broken, Zero, Page, Endless, Slow bool
	// Lagging: what is not certain comes from a server that is behind.
	Lagging bool
	// Emptied: the view of a streaming agent was reset, and answers empty with the index that it was asked for.
	Emptied bool
	// Invalid: the token is refused. Unresolved: its rights cannot be found out, and all is filtered, without saying
	// so.
	Invalid, Unresolved bool
	// Hidden services and nodes are filtered; Silent is a Consul before 1.11, which does not say so.
	Silent          bool
	Services, Nodes map[string]bool
}

// fake is the transport to a Consul of the test's own.
type fake struct {
	changed notify.Notifier
	mu      sync.Mutex
	raft    uint64
	now     *state
	past    []*state
	// since is when an instance was registered.
	since map[string]map[key]time.Time
	lies  lies
	// lied is when lies began, and before is what was before: agents remember rights for half a minute.
	lied    time.Time
	before  lies
	restart chan struct{}
	// abandoned ends what waits when a snapshot is restored.
	abandoned chan struct{}
	acls      bool
	// forgets: the agent does not remember rights.
	forgets bool
	waiting map[string]int
	// asked counts the readings of each path.
	asked map[string]int
	turn  int
	plain int
}

func newFake() *fake {
	f := &fake{raft: 10, now: &state{services: map[string]registered{}, index: 10, gone: 1}, since: map[string]map[key]time.Time{},
		restart: make(chan struct{}), abandoned: make(chan struct{}), acls: true, waiting: map[string]int{}, asked: map[string]int{}, plain: 1000}
	f.register("consul", "server", "consul", Passing) // as servers do
	f.past = nil
	return f
}

// change makes a new state of the newest.
func (f *fake) change(do func(next *state, index uint64)) {
	f.mu.Lock()
	f.raft++
	next := &state{services: maps.Clone(f.now.services), index: f.now.index, gone: f.now.gone}
	do(next, f.raft)
	f.become(next)
	f.mu.Unlock()
	f.changed.Notify()
}

// become is called with mu held.
func (f *fake) become(next *state) {
	f.past = append(f.past, f.now)
	f.now = next
	now := time.Now()
	for name, at := range f.since {
		for k := range at {
			if _, there := next.services[name].instances[k]; !there {
				delete(at, k)
			}
		}
	}
	for name, s := range next.services {
		for k := range s.instances {
			if f.since[name] == nil {
				f.since[name] = map[key]time.Time{}
			}
			if f.since[name][k].IsZero() {
				f.since[name][k] = now
			}
		}
	}
}

// register registers an instance, or changes it.
func (f *fake) register(service, node, id, status string) {
	f.change(func(s *state, index uint64) {
		of := registered{index, maps.Clone(s.services[service].instances)}
		if of.instances == nil {
			of.instances = map[key]entry{}
		}
		var e entry
		e.Node.Node, e.Node.Address, e.Service.ID, e.Service.Service, e.Service.Port = node, "10.0.0.1", id, service, 80
		e.Checks = append(e.Checks, struct{ CheckID, Status string }{"service:" + id, status})
		of.instances[key{node, id}] = e
		s.services[service], s.index = of, index
	})
}

func (f *fake) deregister(service, node, id string) {
	f.change(func(s *state, index uint64) {
		of := registered{index, maps.Clone(s.services[service].instances)}
		if _, there := of.instances[key{node, id}]; !there {
			return
		}
		delete(of.instances, key{node, id})
		s.services[service], s.index = of, index
		if len(of.instances) == 0 {
			delete(s.services, service)
			s.gone = index
		}
	})
}

// restore takes the catalog back to one of long ago, with its indices, and wakes whoever waits. A cluster that was
// rebuilt uses indices a second time.
func (f *fake) restore(back int, rebuilt bool) {
	f.takeBack(back, rebuilt)
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.abandoned)
	f.abandoned = make(chan struct{})
}

// takeBack is restore for those who ask just afterwards.
func (f *fake) takeBack(back int, rebuilt bool) {
	f.mu.Lock()
	if len(f.past) > 0 {
		old := *f.past[max(len(f.past)-1-back, 0)]
		f.become(&old)
		if rebuilt {
			f.raft = 0
		}
		f.raft = max(f.raft, old.index, old.gone)
		for _, s := range old.services {
			f.raft = max(f.raft, s.index)
		}
	}
	f.mu.Unlock()
}

// restartAgent ends all that is under way.
func (f *fake) restartAgent() {
	f.mu.Lock()
	close(f.restart)
	f.restart = make(chan struct{})
	f.mu.Unlock()
}

func (f *fake) lie(l lies) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before, f.lies, f.lied = f.lies, l, time.Now()
}

// passing tells since when an instance is registered; false if it is not, or does not pass.
func (f *fake) passing(service string, k key) (time.Time, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e, there := f.now.services[service].instances[k]
	return f.since[service][k], there && e.status() == Passing
}

// watched counts the readings that wait for changes, by what they read.
func (f *fake) watched() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.waiting)
}

// askedSince counts the readings of each path since the last call.
func (f *fake) askedSince() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.asked
	f.asked = map[string]int{}
	return asked
}

func (f *fake) watches() int { return f.plain }
func (f *fake) close()       {}

// RoundTrip implements http.RoundTripper.
func (f *fake) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	l, restart := f.lies, f.restart
	f.turn++
	f.asked[r.URL.Path]++
	turn := f.turn
	f.mu.Unlock()
	if l.Slow {
		time.Sleep(time.Second)
	}
	certain := r.URL.Query().Has("consistent")
	switch {
	case l.Cut:
		return nil, errors.New("connection reset")
	case l.NoLeader:
		return answer(500, "No cluster leader", nil), nil
	case l.TooMany:
		return answer(429, "Your IP is issuing too many concurrent connections", nil), nil
	case l.Invalid:
		return answer(403, "ACL not found", nil), nil
	case l.Page:
		return answer(200, "[]", http.Header{"Content-Type": {"text/html"}}), nil
	case r.URL.Path == authorizePath:
		return f.authorize(r)
	}
	index, _ := strconv.ParseUint(r.URL.Query().Get("index"), 10, 64)
	wait, _ := time.ParseDuration(r.URL.Query().Get("wait"))
	st := f.newest()
	if l.Lagging && !certain && turn*40503>>8%2 == 0 { // half of them, without a pattern
		st = f.behind()
	}
	content, at, filtered := st.read(r.URL.Path, l)
	if index > 0 && at <= index {
		before := st
		if err := f.wait(r.Context(), r.URL.Path, index, wait+wait/32, restart); err != nil && !errors.Is(err, errAbandoned) {
			return nil, err
		} else if err == nil {
			before = f.newest()
		}
		f.mu.Lock()
		l = f.lies
		f.mu.Unlock()
		content, at, filtered = before.read(r.URL.Path, l)
	}
	h := http.Header{"Content-Type": {"application/json"}, "X-Consul-Knownleader": {"true"}, "X-Consul-Lastcontact": {"0"}}
	if filtered && !l.Silent {
		h.Set("X-Consul-Results-Filtered-By-ACLs", "true")
	}
	switch {
	case l.Emptied && !certain && index > 0 && strings.HasPrefix(r.URL.Path, servicePath):
		content, at = []byte("[]"), index
		h.Set("X-Consul-Query-Backend", "streaming")
		h.Set("X-Consul-KnownLeader", "false")
	case l.UnknownLeader && !certain:
		h.Set("X-Consul-KnownLeader", "false")
		content = []byte("[]")
	case l.OldContact && !certain:
		h.Set("X-Consul-LastContact", "60000")
		content, _, _ = f.behind().read(r.URL.Path, l)
	case l.Torn:
		content = content[:len(content)-1-turn%len(content)]
	case l.Broken:
		content = append(content, content...)
	}
	h.Set("X-Consul-Index", strconv.FormatUint(at, 10))
	if l.Zero {
		h.Set("X-Consul-Index", "0")
	}
	resp := answer(200, string(content), h)
	if l.Endless && strings.HasPrefix(r.URL.Path, servicePath) {
		resp.Body = io.NopCloser(io.MultiReader(strings.NewReader(`[{"Node": {"Node": "`), endless{}))
	}
	return resp, nil
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func answer(status int, content string, h http.Header) *http.Response {
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(content))}
}

func (f *fake) newest() *state {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

func (f *fake) behind() *state {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.past) == 0 {
		return f.now
	}
	return f.past[max(len(f.past)-3, 0)]
}

// errAbandoned says that a reading gets what was before a snapshot was restored.
var errAbandoned = errors.New("abandoned")

// wait waits until what is at a path is newer than index, or until the agent restarts.
func (f *fake) wait(ctx context.Context, path string, index uint64, d time.Duration, restart chan struct{}) error {
	f.mu.Lock()
	f.waiting[path]++
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.waiting[path]--; f.waiting[path] == 0 {
			delete(f.waiting, path)
		}
	}()
	timer := time.NewTimer(d)
	defer timer.Stop()
	f.mu.Lock()
	abandoned := f.abandoned
	f.mu.Unlock()
	for {
		changed := f.changed.Changed()
		if _, at, _ := f.newest().read(path, lies{}); at > index {
			return nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return nil
		case <-abandoned:
			return errAbandoned
		case <-restart:
			return errors.New("EOF")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// read is what is at a path.
func (s *state) read(path string, l lies) (content []byte, index uint64, filtered bool) {
	hidden := func(service, node string) bool {
		filtered = filtered || !l.Unresolved && (l.Services[service] || l.Nodes[node])
		return l.Services[service] || l.Nodes[node] || l.Unresolved
	}
	if path == namesPath {
		names := map[string][]string{}
		for name, of := range s.services {
			for k := range of.instances {
				if !hidden(name, k.node) {
					names[name] = []string{}
				}
			}
		}
		content, _ = json.Marshal(names)
		return content, s.index, filtered
	}
	name := strings.TrimPrefix(path, servicePath)
	of, there := s.services[name]
	if index = of.index; !there {
		index = s.gone
	}
	list := []entry{}
	for _, k := range slices.SortedFunc(maps.Keys(of.instances), func(a, b key) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) }) {
		if !hidden(name, k.node) {
			list = append(list, of.instances[k])
		}
	}
	content, _ = json.Marshal(list)
	return content, index, filtered
}

func (f *fake) authorize(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	l := f.lies
	if time.Since(f.lied) < 30*time.Second && !f.forgets {
		l = f.before
	}
	f.mu.Unlock()
	if !f.acls {
		return answer(401, "ACL support disabled", nil), nil
	}
	var rights []right
	if err := json.NewDecoder(r.Body).Decode(&rights); err != nil {
		return nil, err
	}
	if len(rights) > 64 {
		return answer(400, "too many", nil), nil
	}
	type verdict struct {
		right
		Allow bool
	}
	out := make([]verdict, len(rights))
	for i, of := range rights {
		denied := l.Unresolved || of.Resource == "service" && l.Services[of.Segment] || of.Resource == "node" && l.Nodes[of.Segment]
		out[i] = verdict{of, !denied}
	}
	content, _ := json.Marshal(out)
	return answer(200, string(content), http.Header{"Content-Type": {"application/json"}}), nil
}

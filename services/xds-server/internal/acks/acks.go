// Package acks keeps which generation of the trust bundle each connected agent has acknowledged, and what of this the
// ca has yet to be told.
package acks

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"sync"

	"fairlead.dev/pkg/notify"
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
)

const (
	// FingerprintBytes are those of a certificate's SHA-256 by which the ca is told of the certificate.
	FingerprintBytes = 16
	// MaxPodUIDBytes bounds the Pod UIDs that the ca is told of; Kubernetes writes 36 bytes.
	MaxPodUIDBytes = 64
	// maxMessageAgents and maxMessageBytes bound one message to the ca, which takes up to 25 KiB.
	maxMessageAgents = 500
	maxMessageBytes  = 20 << 10
	// maxNamed is how many agents a State names.
	maxNamed = 100
)

// Point is one generation of the trust bundle. The zero value stands for none.
type Point struct{ Epoch, Generation uint64 }

// compare orders points by age.
func (p Point) compare(other Point) int {
	return cmp.Or(cmp.Compare(p.Epoch, other.Epoch), cmp.Compare(p.Generation, other.Generation))
}

// Holder is how an agent has shown who it is: by a certificate, or by a token that is bound to a Pod. It may have done
// neither; then the ca is not told of the agent.
type Holder struct {
	// Fingerprint is the first bytes of the SHA-256 of the certificate; all zero if there is none.
	Fingerprint [FingerprintBytes]byte
	PodUID      string
}

func (h *Holder) known() bool {
	return h.Fingerprint != [FingerprintBytes]byte{} || h.PodUID != "" && len(h.PodUID) <= MaxPodUIDBytes
}

// Agent is one stream of an agent that subscribes to the bundle. Its fields belong to the Ledger.
type Agent struct {
	name   string
	holder Holder
	acked  Point
}

// Ledger has the agents that are connected. An acknowledgement costs the same however many agents there are. It is safe
// for concurrent use; its methods take no other lock. Changed is closed when there is something to Take.
type Ledger struct {
	notify.Notifier

	mu      sync.Mutex
	current Point
	agents  map[*Agent]struct{}
	// untold are those of agents whose last acknowledgement was not taken yet.
	untold map[*Agent]struct{}
	// counts says how many agents have acknowledged each generation last.
	counts map[Point]int
}

// New makes a ledger without agents.
func New() *Ledger {
	return &Ledger{agents: map[*Agent]struct{}{}, untold: map[*Agent]struct{}{}, counts: map[Point]int{}}
}

// SetCurrent says which generation agents are sent.
func (l *Ledger) SetCurrent(p Point) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current = p
}

// Open adds an agent that has subscribed and acknowledged nothing yet. The caller must Close it.
func (l *Ledger) Open(name string, holder Holder) *Agent {
	a := &Agent{name: name, holder: holder}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.agents[a] = struct{}{}
	l.counts[Point{}]++
	return a
}

// Close forgets an agent.
func (l *Ledger) Close(a *Agent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.agents[a]; !ok {
		return
	}
	delete(l.agents, a)
	delete(l.untold, a)
	l.uncount(a.acked)
}

// Acked notes what an agent verifies with now.
func (l *Ledger) Acked(a *Agent, p Point) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.agents[a]; !ok || a.acked == p {
		return
	}
	l.uncount(a.acked)
	a.acked = p
	l.counts[p]++
	if !a.holder.known() {
		return
	}
	if l.untold[a] = struct{}{}; len(l.untold) == 1 {
		l.Notify()
	}
}

func (l *Ledger) uncount(p Point) {
	if l.counts[p]--; l.counts[p] == 0 {
		delete(l.counts, p)
	}
}

// Take returns what was acknowledged since the last call, or with all what every agent has acknowledged, each element
// for one message to the ca. What it returns is not returned again.
func (l *Ledger) Take(all bool) [][]*cav1.AgentAcknowledgement {
	var out [][]*cav1.AgentAcknowledgement
	byPoint := l.take(all)
	for _, p := range slices.SortedFunc(maps.Keys(byPoint), Point.compare) {
		out = appendMessages(out, p, byPoint[p])
	}
	return out
}

func (l *Ledger) take(all bool) map[Point][]Holder {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.untold
	if all {
		taken = l.agents
	}
	byPoint := map[Point][]Holder{}
	for a := range taken {
		if a.acked != (Point{}) && a.holder.known() {
			byPoint[a.acked] = append(byPoint[a.acked], a.holder)
		}
	}
	l.untold = map[*Agent]struct{}{} // a map does not shrink
	return byPoint
}

// appendMessages adds messages with the holders of one generation; several streams of one holder count once.
func appendMessages(out [][]*cav1.AgentAcknowledgement, p Point, holders []Holder) [][]*cav1.AgentAcknowledgement {
	slices.SortFunc(holders, func(a, b Holder) int {
		return cmp.Or(bytes.Compare(a.Fingerprint[:], b.Fingerprint[:]), cmp.Compare(a.PodUID, b.PodUID))
	})
	var m *cav1.AgentAcknowledgement
	agents, size := 0, 0
	for _, h := range slices.Compact(holders) {
		if m == nil || agents == maxMessageAgents || size+max(FingerprintBytes, len(h.PodUID)) > maxMessageBytes {
			m, agents, size = &cav1.AgentAcknowledgement{Epoch: p.Epoch, Generation: p.Generation}, 0, 0
			out = append(out, []*cav1.AgentAcknowledgement{m})
		}
		const overhead = 2 // tag and length
		if h.PodUID != "" {
			m.PodUids = append(m.PodUids, h.PodUID)
			size += len(h.PodUID) + overhead
		} else {
			m.Certificates = append(m.Certificates, bytes.Clone(h.Fingerprint[:]))
			size += FingerprintBytes + overhead
		}
		agents++
	}
	return out
}

// State is what operators are shown.
type State struct {
	Epoch      uint64 `json:"epoch"`
	Generation uint64 `json:"generation"`
	// Agents are those that subscribe to the bundle, Behind those of them that have not acknowledged the generation.
	Agents int `json:"agents"`
	Behind int `json:"behind"`
	// BehindFirst names up to 100 of those behind, by node id.
	BehindFirst []string `json:"behindFirst,omitempty"`
	// Acknowledged counts the agents by the generation that they have acknowledged last, the newest first; generation 0
	// stands for none.
	Acknowledged []Count `json:"acknowledged,omitempty"`
}

// Count of the agents that have acknowledged a generation.
type Count struct {
	Epoch      uint64 `json:"epoch"`
	Generation uint64 `json:"generation"`
	Agents     int    `json:"agents"`
}

// Behind counts the agents that have not acknowledged the current generation.
func (l *Ledger) Behind() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p, count := range l.counts {
		if p.compare(l.current) < 0 {
			n += count
		}
	}
	return n
}

// State describes the agents.
func (l *Ledger) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := State{Epoch: l.current.Epoch, Generation: l.current.Generation, Agents: len(l.agents)}
	for p, count := range l.counts {
		s.Acknowledged = append(s.Acknowledged, Count{Epoch: p.Epoch, Generation: p.Generation, Agents: count})
	}
	slices.SortFunc(s.Acknowledged, func(a, b Count) int {
		return Point{b.Epoch, b.Generation}.compare(Point{a.Epoch, a.Generation})
	})
	for a := range l.agents {
		if a.acked.compare(l.current) < 0 {
			s.Behind++
			s.BehindFirst = append(s.BehindFirst, a.name)
		}
	}
	slices.Sort(s.BehindFirst)
	s.BehindFirst = slices.Clip(s.BehindFirst[:min(len(s.BehindFirst), maxNamed)])
	return s
}

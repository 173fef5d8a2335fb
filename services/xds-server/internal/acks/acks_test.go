package acks_test

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/services/xds-server/internal/acks"
)

func certificate(n int) acks.Holder {
	h := acks.Holder{}
	binary.BigEndian.PutUint32(h.Fingerprint[:], uint32(n)+1) //nolint:gosec // small
	return h
}

var second, third = acks.Point{Epoch: 1, Generation: 2}, acks.Point{Epoch: 1, Generation: 3}

func changed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// told lists what was taken: generation, certificates, Pods.
func told(messages [][]*cav1.AgentAcknowledgement) (all []string) {
	for _, m := range messages {
		for _, a := range m {
			for _, c := range a.GetCertificates() {
				all = append(all, fmt.Sprintf("%d/%d certificate %d", a.GetEpoch(), a.GetGeneration(), binary.BigEndian.Uint32(c)))
			}
			for _, uid := range a.GetPodUids() {
				all = append(all, fmt.Sprintf("%d/%d pod %s", a.GetEpoch(), a.GetGeneration(), uid))
			}
		}
	}
	return all
}

func TestLedgerTellsWhatHasChanged(t *testing.T) {
	l := acks.New()
	a, b := l.Open("a", certificate(0)), l.Open("b", acks.Holder{PodUID: "uid-b"})
	nobody := l.Open("nobody", acks.Holder{})
	longUID := l.Open("long", acks.Holder{PodUID: strings.Repeat("x", acks.MaxPodUIDBytes+1)})
	want := func(all bool, want ...string) {
		t.Helper()
		if got := told(l.Take(all)); !slices.Equal(got, want) {
			t.Errorf("told %q, want %q", got, want)
		}
	}
	want(true) // nobody has acknowledged anything
	signal := l.Changed()
	l.Acked(nobody, second)
	l.Acked(longUID, second)
	if changed(signal) {
		t.Error("the ca is to be told of agents that have not shown who they are")
	}
	l.Acked(a, second)
	if !changed(signal) {
		t.Error("an acknowledgement is not signalled")
	}
	l.Acked(b, second)
	l.Acked(b, third)
	want(false, "1/2 certificate 1", "1/3 pod uid-b")
	want(false)
	signal = l.Changed()
	l.Acked(a, second)
	if changed(signal) {
		t.Error("the same acknowledgement again is signalled")
	}
	l.Acked(a, third)
	if !changed(signal) {
		t.Error("a second acknowledgement is not signalled")
	}
	again := l.Open("a", certificate(0)) // a second stream of the same agent
	l.Acked(again, third)
	want(false, "1/3 certificate 1")
	want(true, "1/3 certificate 1", "1/3 pod uid-b")
	l.Acked(again, acks.Point{Epoch: 1, Generation: 4})
	l.Close(again)
	l.Close(again)
	l.Acked(again, second)
	want(false)
	l.Close(a)
	l.Close(b)
	want(true)
}

func TestLedgerNamesWhoIsBehind(t *testing.T) {
	l := acks.New()
	l.SetCurrent(second)
	open := map[string]*acks.Agent{}
	for i := range 150 {
		name := fmt.Sprintf("proxy-%03d", i)
		open[name] = l.Open(name, certificate(i))
		l.Acked(open[name], second)
	}
	silent := l.Open("silent", certificate(200))
	if s := l.State(); s.Agents != 151 || s.Behind != 1 || l.Behind() != 1 || !slices.Equal(s.BehindFirst, []string{"silent"}) {
		t.Errorf("got %+v, want the silent one behind", s)
	}
	l.SetCurrent(acks.Point{Epoch: 2, Generation: 1}) // the ca was restored
	l.Acked(open["proxy-000"], acks.Point{Epoch: 2, Generation: 1})
	s := l.State()
	if s.Behind != 150 || l.Behind() != 150 || len(s.BehindFirst) != 100 || s.BehindFirst[0] != "proxy-001" {
		t.Errorf("%d behind, %d named, the first of them %v; want 150, 100, proxy-001", s.Behind, len(s.BehindFirst), s.BehindFirst[:1])
	}
	want := []acks.Count{{Epoch: 2, Generation: 1, Agents: 1}, {Epoch: 1, Generation: 2, Agents: 149}, {Agents: 1}}
	if !slices.Equal(s.Acknowledged, want) {
		t.Errorf("acknowledged %v, want %v", s.Acknowledged, want)
	}
	l.Close(silent)
	for _, a := range open {
		l.Close(a)
	}
	if s := l.State(); s.Agents != 0 || s.Behind != 0 || len(s.Acknowledged) != 0 {
		t.Errorf("after everybody has left: %+v", s)
	}
}

// Each message is one that the ca takes: at most 500 agents, and fewer bytes than its limit of 25 KiB.
func TestMessagesAreBounded(t *testing.T) {
	l := acks.New()
	for i := range 1200 {
		l.Acked(l.Open("", certificate(i)), second)
		l.Acked(l.Open("", acks.Holder{PodUID: fmt.Sprintf("%0*d", acks.MaxPodUIDBytes, i)}), third)
	}
	messages := l.Take(false)
	for _, m := range messages {
		agents := 0
		for _, a := range m {
			agents += len(a.GetCertificates()) + len(a.GetPodUids())
		}
		request := &cav1.WatchBundleRequest{Subscriber: strings.Repeat("s", 256), AckedEpoch: 1, AckedGeneration: 3, Agents: m}
		if size := proto.Size(request); agents > 500 || size > 24<<10 {
			t.Errorf("a message has %d agents in %d bytes", agents, size)
		}
	}
	if got := len(told(messages)); got != 2400 {
		t.Errorf("%d agents were told, want 2400", got)
	}
}

func TestBundlesKnowTheirGeneration(t *testing.T) {
	var b acks.Bundles
	encoded := func(generation uint64) []byte {
		bundle, err := proto.Marshal(&cav1.TrustBundle{Epoch: 1, Generation: generation})
		if err != nil {
			t.Fatal(err)
		}
		signed, err := proto.Marshal(&cav1.SignedBundle{Bundle: bundle})
		if err != nil {
			t.Fatal(err)
		}
		return signed
	}
	for i := range uint64(20) {
		if got := b.Point(fmt.Sprint(i), encoded(i)); got != (acks.Point{Epoch: 1, Generation: i}) {
			t.Errorf("version %d is %v", i, got)
		}
	}
	if got := b.Point("19", nil); got.Generation != 19 {
		t.Errorf("the last version is decoded again, as %v", got)
	}
	if got := b.Point("bad", []byte{0xff}); got != (acks.Point{}) {
		t.Errorf("what is no bundle is %v", got)
	}
}

// The memory of an agent stays small: an xds-server has 10,000 of them.
func TestMemoryOfAgents(t *testing.T) {
	const agents = 10_000
	before := heap()
	l := acks.New()
	for i := range agents {
		l.Acked(l.Open("sidecar~10.0.0.1~pod.default~default.svc.cluster.local", certificate(i)), second)
	}
	each := (heap() - before) / agents
	t.Logf("%d bytes for each agent with an acknowledgement that was not told yet", each)
	if each > 300 {
		t.Errorf("%d bytes for each agent, want at most 300", each)
	}
	l.Take(false)
	t.Logf("%d bytes for each when it is told", (heap()-before)/agents)
	runtime.KeepAlive(l)
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func BenchmarkAcked(b *testing.B) {
	l := acks.New()
	open := make([]*acks.Agent, 10_000)
	for i := range open {
		open[i] = l.Open("", certificate(i))
	}
	b.ReportAllocs()
	n := uint64(0)
	for b.Loop() {
		n++
		l.Acked(open[n%uint64(len(open))], acks.Point{Epoch: 1, Generation: n / uint64(len(open))})
	}
}

func BenchmarkTakeAll(b *testing.B) {
	l := acks.New()
	for i := range 10_000 {
		l.Acked(l.Open("", certificate(i)), second)
	}
	b.ReportAllocs()
	for b.Loop() {
		l.Take(true)
	}
}

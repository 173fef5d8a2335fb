package caops

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/caapi"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func root(digit string) caapi.Root {
	return caapi.Root{Subject: "O=" + digit, SHA256: strings.Repeat(digit, 64), NotAfter: now.AddDate(10, 0, 0), PEM: "-----" + digit + "-----\n"}
}

// idle is a ca without a rotation.
func idle() *caapi.Status {
	return &caapi.Status{
		Replica: "ca-0", Leader: "ca-0", TrustDomain: "cluster.local", Epoch: 1, Generation: 4, Step: Idle, Since: now.Add(-time.Hour),
		Signers: []caapi.Signer{{ID: 1, Name: "self-signed", Kind: "intermediate", Role: "current", Roots: []caapi.Root{root("a")},
			NotAfter: now.AddDate(0, 1, 0)}},
		Holders: caapi.Holders{Total: 103, Acknowledged: 103, BySigner: map[uint64]int{1: 103}},
		Roots:   []caapi.Root{root("a")},
	}
}

// gate is a ca that waits for holders of a number.
func gate(behind int) *caapi.Status {
	s := idle()
	s.Step, s.Since, s.Began, s.Reason = "gate", now.Add(-4*time.Minute), now.Add(-5*time.Minute), "yearly"
	s.Generation, s.Holders.Acknowledged, s.Lagging.Total = 5, 103-behind, behind
	s.Signers = append(s.Signers, caapi.Signer{ID: 2, Name: "self-signed", Kind: "intermediate", Role: "next", Roots: []caapi.Root{root("b")}})
	s.Roots = append(s.Roots, root("b"))
	for i := range min(behind, caapi.MaxListed) {
		s.Lagging.First = append(s.Lagging.First, caapi.Holder{Name: fmt.Sprintf("shop/web-%d", i), Identity: "spiffe://cluster.local/ns/shop/sa/web",
			Serial: fmt.Sprintf("%02x", i), NotAfter: now.Add(12 * time.Hour), Generation: 4, Signer: 1})
	}
	if behind > 1 {
		s.Lagging.First[1].Name = s.Lagging.First[1].Identity + " 01"
	}
	return s
}

// renew is a ca of two replicas in trouble, of which the one that leads has not answered.
func renew() *caapi.Status {
	s := gate(1)
	s.Step, s.Leader, s.Paused, s.Compromised, s.Accepted = "renew", "ca-1", true, true, []string{"shop/old-0", "shop/old-1"}
	s.Signers[0].Role, s.Signers[1].Role, s.Signers[1].Problem = "old", "current", "Vault is sealed:\nunseal it"
	s.Waits = []string{"replica ca-1 was not heard of for 2m0s"}
	s.Holders.BySigner, s.Holders.UnknownUntil = map[uint64]int{1: 1, 2: 102}, now.Add(24*time.Hour)
	s.Holders.UnknownReason = "the clock was set forward"
	s.Replicas = []caapi.Replica{{Name: "ca-0", Signer: 2, Seen: now}, {Name: "ca-1", Signer: 1, Seen: now.Add(-2 * time.Minute), Problem: "away"}}
	s.Problems = []string{"the journal of holders cannot be written: no space left on device; make room"}
	return s
}

func TestLines(t *testing.T) {
	for name, s := range map[string]*caapi.Status{"idle": idle(), "gate": gate(2), "renew": renew(), "empty": {Step: "later"}} {
		t.Run(name, func(t *testing.T) {
			testkit.Golden(t, filepath.Join("testdata", name+".txt"), []byte(strings.Join(Lines(s, now), "\n")+"\n"))
		})
	}
	testkit.GoldenStale(t, "testdata/*.txt", []string{"testdata/idle.txt", "testdata/gate.txt", "testdata/renew.txt", "testdata/empty.txt"})
}

func TestMoreHoldersThanListedAreCounted(t *testing.T) {
	text := strings.Join(Lines(gate(103), now), "\n")
	if !strings.Contains(text, "  - 103 holders that do not trust the next roots yet") || !strings.HasSuffix(text, "\nand 3 more") {
		t.Error(text)
	}
}

func TestSummary(t *testing.T) {
	for want, s := range map[string]*caapi.Status{
		"idle": idle(),
		"gate": gate(0),
		"gate: 1 holder that does not trust the next roots yet: shop/web-0":                                                         gate(1),
		"gate: 4 holders that do not trust the next roots yet: shop/web-0, spiffe://cluster.local/ns/shop/sa/web 01, shop/web-2, …": gate(4),
		"renew, paused: replica ca-1 was not heard of for 2m0s; 1 holder that has a certificate of the signer before: shop/web-0; " +
			"problem: the journal of holders cannot be written: no space left on device; make room": renew(),
	} {
		if got := Summary(s); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestTextsOfOthersStayInTheirLine: a reason or a problem with line ends does not look like a line of its own.
func TestTextsOfOthersStayInTheirLine(t *testing.T) {
	s := gate(1)
	s.Reason, s.Problems, s.Waits = "x\ny", []string{"a\nb"}, []string{"c\r\nd"}
	s.Lagging.First[0].Name = "shop/e\nf"
	lines := strings.Join(Lines(s, now), "\n")
	for _, want := range []string{": x y\n", "  - a b\n", "  - c d\n", "\nshop/e f  "} {
		if !strings.Contains(lines, want) {
			t.Errorf("lacks %q:\n%s", want, lines)
		}
	}
	if text := Summary(s); strings.ContainsAny(text, "\r\n") {
		t.Errorf("%q", text)
	}
}

func TestScreenDrawsOverWhatItDrew(t *testing.T) {
	var b strings.Builder
	height := 40
	screen := &Screen{W: &b, Clock: fixed{}, Size: func() (int, int) { return 70, height }}
	screen.Show(gate(2))
	lines := strings.Count(b.String(), "\n")
	b.Reset()
	hostile := gate(2)
	hostile.Reason = "\x1b[2J"
	screen.Show(hostile)
	if text := b.String(); !strings.HasPrefix(text, fmt.Sprintf("\x1b[%dA\r\x1b[J", lines)) || !strings.Contains(text, `\x1b[2J`) {
		t.Errorf("%d lines, then %q", lines, text)
	}
	for line := range strings.SplitSeq(b.String(), "\n") {
		if n := len([]rune(line)); n > 90 {
			t.Errorf("%d characters: %q", n, line)
		}
	}
	b.Reset()
	height = 10
	screen.Say("ca-0:\naway")
	if text := b.String(); strings.Count(text, "\n") != 9 || !strings.Contains(text, "more lines: `fairlead ca status`") {
		t.Errorf("%q", text)
	}
	height = 40
	b.Reset()
	screen.Say("ca-0:\naway")
	if text := b.String(); !strings.HasSuffix(text, "\n\nca-0: away\n") {
		t.Errorf("%q", text)
	}
}

type fixed struct{}

func (fixed) Now() time.Time { return now }

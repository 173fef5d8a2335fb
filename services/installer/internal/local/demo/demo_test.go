package demo

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// answers returns an answer of each version, a second apart; "x" is a failed one.
func answers(versions string) []answer {
	t := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var list []answer
	for i, v := range strings.Fields(versions) {
		a := answer{began: t.Add(time.Duration(i) * time.Second),
			ended: t.Add(time.Duration(i)*time.Second + time.Duration(i+1)*time.Millisecond)}
		if v == "x" {
			a.err = errors.New("503")
		} else {
			a.hops = []hop{{Service: "productpage", Version: "v1"}, {Service: "reviews", Version: v}}
		}
		list = append(list, a)
	}
	return list
}

func TestFirstSettled(t *testing.T) {
	for text, want := range map[string]int{
		"v1 v3 v1 v3 v3 v3": 3,
		"v3 v3 v3":          0,
		"v1 v3 x v3 v3 v3":  3,
		"v3 v3 v3 v1":       -1,
		"v1 v3 v3":          -1, // too few to tell
		"":                  -1,
	} {
		list := answers(text)
		got, ok := firstSettled(list, "v3", 3)
		if ok != (want >= 0) || ok && !got.began.Equal(list[want].began) {
			t.Errorf("%q: %v, %t", text, got.began, ok)
		}
	}
}

func TestFailuresAndPercentile(t *testing.T) {
	list := answers("v1 x v2 x v3")
	n, kinds := failures(list)
	if n != 2 || fmt.Sprint(kinds) != "[2 x 503]" {
		t.Errorf("%d failures, %v", n, kinds)
	}
	if got := percentile(list, 0.99); got != 5*time.Millisecond {
		t.Errorf("99 %% within %s", got)
	}
	if got := percentile(nil, 0.5); got != 0 {
		t.Errorf("of nothing %s", got)
	}
}

func TestReconnected(t *testing.T) {
	old := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	proxy := func(id string, at time.Time, acked bool) *configv1.ProxyStatus {
		p := &configv1.ProxyStatus{NodeId: id, ConnectedAt: timestamppb.New(at),
			Types: []*configv1.ProxyTypeStatus{{BytesSent: 10}, {BytesSent: 5}}}
		if acked {
			p.Acked = &configv1.Revision{Sequence: 1}
		}
		return p
	}
	later := old.Add(time.Second)
	back, bytes := reconnected([]*configv1.ProxyStatus{
		proxy("a", later, true), proxy("b", later, false), proxy("c", old, true), proxy("other", later, true),
	}, map[string]time.Time{"a": old, "b": old, "c": old})
	if back != 1 || bytes != 15 {
		t.Errorf("%d back, %d bytes", back, bytes)
	}
	if !instanceOf("xds-server-1/ab", "xds-server-1") || instanceOf("xds-server-10/ab", "xds-server-1") {
		t.Error("instances are mixed up")
	}
}

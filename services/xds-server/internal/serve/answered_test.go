package serve_test

import (
	"fmt"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// settles waits until AllAnswered says that all proxies have answered, or that some have not.
func (r *fixture) settles(want bool) {
	r.t.Helper()
	testkit.Eventually(r.t, patience, func() error {
		if got := r.ADS.AllAnswered() == nil; got != want {
			return fmt.Errorf("answered %v, want %v", got, want)
		}
		return nil
	})
}

func TestAllAnsweredWhenEverybodyHasAnswered(t *testing.T) {
	r := start(t, basicMesh()...)
	a, b := r.delta("aaa", "default"), r.delta("bbb", "default")
	a.connectAll()
	b.connectAll()
	r.settles(true)

	r.edit(meshtest.Endpoints("default", hostA, 80, "10.1.0.11"))
	settled := r.ADS.AllAnswered()
	if settled == nil {
		t.Fatal("all answered before anybody has answered")
	}
	most, before := r.ADS.MostAnswered()
	if most == nil {
		t.Fatal("of two proxies none is a straggler")
	}
	a.ack(a.next())
	testkit.Eventually(t, patience, func() error {
		if _, now := r.ADS.MostAnswered(); now != before+1 {
			return fmt.Errorf("%d answers, want 1", now-before)
		}
		return nil
	})
	select {
	case <-settled:
		t.Error("all answered when one of two has answered")
	default:
	}
	b.nack(b.next(), "no") // a NACK is an answer too
	for _, closed := range []<-chan struct{}{settled, most} {
		select {
		case <-closed:
		case <-time.After(patience):
			t.Fatal("not all answered when everybody has answered")
		}
	}
}

// A response that is unanswered when the next revision is applied delays no later one, and neither does a proxy that
// disconnects.
func TestAllAnsweredDoesNotWaitForResponsesOfEarlierRounds(t *testing.T) {
	r := start(t, basicMesh()...)
	silent, leaving := r.delta("silent", "default"), r.delta("leaving", "default")
	silent.connectAll()
	leaving.connectAll()
	r.settles(true)

	r.edit(meshtest.Endpoints("default", hostA, 80, "10.1.0.11"))
	late := silent.next()
	leaving.ack(leaving.next())
	r.settles(false)
	r.edit(meshtest.Endpoints("default", hostA, 80, "10.1.0.12"))
	r.settles(false) // the proxy that answers
	leaving.next()
	leaving.cancel()
	r.settles(true)

	// The late ACK belongs to an earlier round; the response that it lets go belongs to this one.
	silent.ack(late)
	r.settles(false)
	silent.ack(silent.next())
	r.settles(true)
}

// A revision that changes nothing for any proxy is answered at once.
func TestAllAnsweredWithoutChanges(t *testing.T) {
	r := start(t, basicMesh()...)
	a := r.delta("aaa", "default")
	a.connectAll()
	r.settles(true)
	r.edit()
	if r.ADS.AllAnswered() != nil {
		t.Error("waits for nobody")
	}
}

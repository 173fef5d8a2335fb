package quota

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc/peer"

	"fairlead.dev/pkg/clock"
)

// passes counts the accounts that quotas.forget looks at: it asks for the time once in each pass over all of them.
type passes struct {
	clock.Clock
	quotas *Quotas
	looked int
}

func (p *passes) Now() time.Time {
	p.looked += len(p.quotas.accounts)
	return time.Unix(1, 0)
}

func TestANewIdentityCostsTheSameHoweverManyThereAre(t *testing.T) {
	q := &Quotas{accounts: map[string]*Account{}}
	count := &passes{quotas: q}
	q.clock = count
	made := 0
	open := func(n int) {
		for range n {
			address := net.TCPAddr{IP: net.IPv4(10, byte(made>>16), byte(made>>8), byte(made))}
			q.accountOf(peer.NewContext(context.Background(), &peer.Peer{Addr: &address}), nil).streams = 1
			made++
		}
	}
	const n = 16 * manyAccounts
	open(n)
	if len(q.accounts) != n {
		t.Fatalf("%d accounts of %d identities with open streams", len(q.accounts), n)
	}
	if most := 2 * n; count.looked > most {
		t.Errorf("%d new identities looked at %d accounts, want at most %d", n, count.looked, most)
	}
	for _, a := range q.accounts {
		a.streams = 0
	}
	open(n + 1)
	if most := n + 1; len(q.accounts) > most {
		t.Errorf("%d accounts, want those of the %d identities with open streams alone", len(q.accounts), most)
	}
	if name := "address 10.0.0.0"; q.accounts[name] != nil {
		t.Errorf("%s has no stream and an account", name)
	}
}

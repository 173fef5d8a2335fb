package app_test

import (
	"encoding/pem"
	"math/big"
	"net/http"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
)

// Envoy refuses a certificate that a list of the ca's bundle revokes, and no other: while a swap leads to a signer
// without lists, all of them are left out, because Envoy would refuse everybody below that signer's root.
func TestListsOfTheBundleRefuseWhatIsRevokedAndNobodyElse(t *testing.T) {
	m := newMesh(t)
	own, next := m.PKI, testkit.PKI(t)
	ca, _ := m.ca("", time.Hour)
	xds, _, _ := m.xds("")
	revoked, good := material(t, own.NewSVID("shop", "client")), material(t, own.NewSVID("shop", "client"))
	list := func(ca *testkit.CA, serials ...*big.Int) []byte {
		block, _ := pem.Decode(ca.Revoke(serials...))
		return block.Bytes
	}
	lists := [][]byte{list(own, new(big.Int).Set(revoked.Certificate.Leaf.SerialNumber))}
	generation := uint64(0)
	give := func(lists [][]byte, roots ...*testkit.CA) {
		t.Helper()
		generation++
		b := bundle(generation, roots...)
		b.RevocationLists = lists
		m.give(signed(t, own, "ca", b))
	}
	p := m.start(ca, xds)
	m.inbound("1", p.ip, application(t, http.HandlerFunc(hello)), true)
	p.wantReady()
	of := func(m *tlsconf.Material) caller { return caller{p, testkit.NewStatic(m), own} }

	give(lists, own)
	of(revoked).served(false)
	of(good).served(true)
	p.wantMetric("fairlead_node_agent_revocation_lists 1")

	give(nil, own, next) // as the ca does while the next signer has no list
	p.from(next, own).served(true)
	of(good).served(true)
	of(revoked).served(true)

	give(lists, own, next) // as a ca of an earlier version might
	p.wantMetric("fairlead_node_agent_revocation_lists_unusable 1")
	p.from(next, own).served(true)
	of(good).served(true)

	give(append(lists, list(next)), own, next)
	of(revoked).served(false)
	of(good).served(true)
	p.from(next, own).served(true)
	p.wantMetric("fairlead_node_agent_revocation_lists 2")
	p.wantMetric("fairlead_node_agent_revocation_lists_unusable 0")
}

package credential

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	typev1beta1 "istio.io/api/type/v1beta1"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	secretv1 "fairlead.dev/proto/fairlead/secret/v1"
	"fairlead.dev/services/config-watcher/internal/fleet"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
	"fairlead.dev/services/config-watcher/internal/revision"
)

var epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// banned is a Bans that the test controls.
type banned struct {
	identity string
	changed  chan struct{}
}

func (b *banned) Banned(identity string) *object.Ban {
	if identity == b.identity {
		return &object.Ban{Identity: identity}
	}
	return nil
}

func (b *banned) Changed() <-chan struct{} { return b.changed }

// fixture is a SecretService with everything that its answers depend on.
type fixture struct {
	t     *testing.T
	clock *testkit.Clock
	table *Table
	log   *revision.Log
	fleet *fleet.Table
	bans  *banned
	conn  *grpc.ClientConn
	// ended are the accesses that have ended.
	ended chan string
}

func newFixture(t *testing.T) *fixture { return newFixtureWith(t, nil) }

func newFixtureWith(t *testing.T, lookup Lookup) *fixture {
	t.Helper()
	r := &fixture{t: t, clock: testkit.NewClock(epoch), table: NewTable(), bans: &banned{changed: make(chan struct{})},
		ended: make(chan string, 100)}
	r.log, r.fleet = revision.NewLog("test", r.clock), fleet.NewTable(r.clock)
	stop := make(chan struct{})
	server := NewServer(ServerConfig{
		Table: r.table, References: NewReferences(r.log), Fleet: r.fleet, Bans: r.bans,
		TrustDomain: spiffeid.RequireTrustDomainFromString("cluster.local"),
		Ready:       func() <-chan struct{} { return nil }, Stop: stop, Clock: r.clock, Log: testkit.Logger(t), Lookup: lookup,
		Ended: func(ref Ref, identity string) { r.ended <- ref.Namespace + "/" + ref.Name + " " + identity },
	})
	r.conn = testkit.ServeInMemory(t, func(g *grpc.Server) { secretv1.RegisterSecretServiceServer(g, server) })
	t.Cleanup(func() { close(stop) })
	return r
}

func identityOf(account string) string { return "spiffe://cluster.local/ns/shop/sa/" + account }

func (r *fixture) commit(upserts map[resource.Key]proto.Message, removed ...resource.Key) {
	r.t.Helper()
	var list []*configv1.Resource
	for k, body := range upserts {
		switch b := body.(type) {
		case *networking.Gateway, *networking.DestinationRule:
			packed, err := resource.Any(b)
			if err != nil {
				r.t.Fatal(err)
			}
			body = &configv1.IstioConfig{Spec: packed, ExportedTo: []string{"*"}}
		}
		res, err := resource.New(k, body)
		if err != nil {
			r.t.Fatal(err)
		}
		list = append(list, res)
	}
	r.log.Commit(list, removed, "")
}

func workload(name, account, app string) (resource.Key, proto.Message) {
	return resource.Key{Kind: resource.KindWorkload, Namespace: "shop", Name: name}, &configv1.Workload{
		Name: name, Namespace: "shop", Identity: identityOf(account), ServiceAccount: account, Labels: map[string]string{"app": app},
	}
}

func gatewayKey(name string) resource.Key {
	return resource.Key{Kind: kindGateway, Namespace: "any", Name: name}
}

func gateway(app string, names ...string) *networking.Gateway {
	return &networking.Gateway{Selector: map[string]string{"app": app},
		Servers: []*networking.Server{{Tls: &networking.ServerTLSSettings{CredentialNames: names}}}}
}

// report is an instance's report of one proxy of an account.
func report(account, kind string) *configv1.ReportRequest {
	return &configv1.ReportRequest{
		Proxies: []*configv1.ProxyStatus{{NodeId: kind + "~10.0.0.1~" + account + ".shop~d", Identity: identityOf(account), Namespace: "shop"}}}
}

type subscriber struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[secretv1.WatchRequest, secretv1.WatchResponse]
}

// watch opens a stream for an instance.
func (r *fixture) watch(instance string) *subscriber {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	r.t.Cleanup(cancel)
	stream, err := secretv1.NewSecretServiceClient(r.conn).Watch(ctx)
	if err == nil {
		err = stream.Send(&secretv1.WatchRequest{Instance: instance})
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return &subscriber{r.t, stream}
}

func (a *subscriber) subscribe(account, name string) *secretv1.Subscription {
	a.t.Helper()
	s := &secretv1.Subscription{Namespace: "shop", Name: name, Identity: identityOf(account)}
	if err := a.stream.Send(&secretv1.WatchRequest{Subscribe: []*secretv1.Subscription{s}}); err != nil {
		a.t.Fatal(err)
	}
	return s
}

// next reports whether the next answer, which must be to the subscription, has a credential.
func (a *subscriber) next(s *secretv1.Subscription) bool {
	a.t.Helper()
	m, err := a.stream.Recv()
	if err != nil {
		a.t.Fatal(err)
	}
	if !proto.Equal(m.GetSubscription(), s) {
		a.t.Fatalf("answer to %v, want %v", m.GetSubscription(), s)
	}
	return m.GetCredential() != nil
}

// shop is a mesh of a gateway, a sidecar with a DestinationRule, and a batch job in one namespace.
func (r *fixture) shop() {
	all := map[resource.Key]proto.Message{
		gatewayKey("edge"): gateway("edge", "edge-tls", "kubernetes-gateway://shop/qualified", "kubernetes-gateway://other/foreign"),
		{Kind: kindRule, Namespace: "shop", Name: "client"}: &networking.DestinationRule{
			WorkloadSelector: &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": "web"}},
			Subsets: []*networking.Subset{{TrafficPolicy: &networking.TrafficPolicy{PortLevelSettings: []*networking.TrafficPolicy_PortTrafficPolicy{
				{Tls: &networking.ClientTLSSettings{CredentialName: "client-tls"}},
			}}}},
		},
		{Kind: kindRule, Namespace: "other", Name: "egress"}: &networking.DestinationRule{
			TrafficPolicy: &networking.TrafficPolicy{Tls: &networking.ClientTLSSettings{CredentialName: "egress-tls"}},
		},
	}
	for _, w := range [][3]string{{"edge-1", "edge", "edge"}, {"web-1", "web", "web"}, {"batch-1", "batch", "batch"}} {
		k, body := workload(w[0], w[1], w[2])
		all[k] = body
	}
	r.commit(all)
	for _, name := range []string{"edge-tls", "qualified", "foreign", "client-tls", "egress-tls", "unused"} {
		r.table.Take([]normalise.Change{change("Secret", name, pair(name))})
	}
}

// TestWhoMayRead: a credential is answered only for the identity of a workload that a Gateway or DestinationRule with
// the credential selects, and only if the subscribing xds-server has reported the identity as connected.
func TestWhoMayRead(t *testing.T) {
	for name, tc := range map[string]struct {
		instance      string
		account, kind string // what xds-1 reports
		ask           string // on behalf of this account
		credential    string
		want          bool
	}{
		"gateway": {"xds-1", "edge", "router", "edge", "edge-tls", true},
		"its authority": {"xds-1", "edge", "router", "edge", "edge-tls-cacert",
			false}, // there is none, and the key is not it
		"named with its namespace":             {"xds-1", "edge", "router", "edge", "qualified", true},
		"named with another namespace":         {"xds-1", "edge", "router", "edge", "foreign", false},
		"a rule of another namespace":          {"xds-1", "edge", "router", "edge", "egress-tls", true},
		"named by nothing":                     {"xds-1", "edge", "router", "edge", "unused", false},
		"reported by another":                  {"xds-2", "edge", "router", "edge", "edge-tls", false},
		"an older xds-server":                  {"", "edge", "router", "edge", "edge-tls", true},
		"nobody of it connected":               {"xds-1", "web", "sidecar", "edge", "edge-tls", false},
		"not as a gateway":                     {"xds-1", "edge", "sidecar", "edge", "edge-tls", false},
		"another account's gateway":            {"xds-1", "batch", "router", "batch", "edge-tls", false},
		"an account without a workload":        {"xds-1", "ghost", "router", "ghost", "edge-tls", false},
		"selected sidecar":                     {"xds-1", "web", "sidecar", "web", "client-tls", true},
		"another account's sidecar":            {"xds-1", "batch", "sidecar", "batch", "client-tls", false},
		"sidecar, rule without a selector":     {"xds-1", "web", "sidecar", "web", "egress-tls", false},
		"a gateway that no rule's selector is": {"xds-1", "edge", "router", "edge", "client-tls", false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newFixture(t)
			r.shop()
			r.fleet.Report("xds-1").Apply(report(tc.account, tc.kind), true)
			a := r.watch(tc.instance)
			s := a.subscribe(tc.ask, tc.credential)
			if !tc.want && tc.credential != "edge-tls-cacert" {
				r.clock.WaitFor(t, 1) // it waits for what would allow it
				r.clock.Advance(answerWithin)
			}
			if got := a.next(s); got != tc.want {
				t.Errorf("handed out: %v, want %v", got, tc.want)
			}
		})
	}
}

// TestPermissionsOfASubscriptionChange: a subscription waits for the proxy's report, gets no new answer after a quick
// reconnection, and loses the credential when the proxy stays away, when no object names it, and when the identity is
// banned.
func TestPermissionsOfASubscriptionChange(t *testing.T) {
	r := newFixture(t)
	r.shop()
	reporter := r.fleet.Report("xds-1")
	reporter.Apply(&configv1.ReportRequest{}, true)
	a := r.watch("xds-1")
	s := a.subscribe("edge", "edge-tls")
	r.clock.WaitFor(t, 1)
	reporter.Apply(report("edge", "router"), false)
	if !a.next(s) {
		t.Fatal("not handed out once the proxy is reported")
	}
	leave := &configv1.ReportRequest{Disconnected: []string{report("edge", "router").Proxies[0].NodeId}}
	away := func(d time.Duration) {
		t.Helper()
		reporter.Apply(leave, false)
		testkit.Eventually(t, testkit.Patience, func() error {
			if in, ok := r.clock.NextIn(); !ok || in != fleet.LostServerGrace {
				return fmt.Errorf("looks again in %v", in)
			}
			return nil
		})
		r.clock.Advance(d)
	}
	// The proxy is back in time: no answer until the next change, the removal of the Gateway.
	away(fleet.LostServerGrace / 2)
	reporter.Apply(report("edge", "router"), false)
	r.commit(nil, gatewayKey("edge"))
	if a.next(s) {
		t.Error("still handed out although nothing names it")
	}
	r.commit(map[resource.Key]proto.Message{gatewayKey("edge"): gateway("edge", "edge-tls")})
	if !a.next(s) {
		t.Error("not handed out when it is named again")
	}
	k, body := workload("edge-1", "batch", "edge")
	r.commit(map[resource.Key]proto.Message{k: body})
	if a.next(s) {
		t.Error("still handed out although the workload is another account's")
	}
	k, body = workload("edge-1", "edge", "edge")
	r.commit(map[resource.Key]proto.Message{k: body})
	if !a.next(s) {
		t.Error("not handed out to the workload's account")
	}
	away(fleet.LostServerGrace)
	if a.next(s) {
		t.Error("still handed out to a proxy that has gone")
	}
	reporter.Apply(report("edge", "router"), false)
	if !a.next(s) {
		t.Error("not handed out when the proxy is back")
	}
	r.bans.identity = identityOf("edge")
	close(r.bans.changed)
	if a.next(s) {
		t.Error("still handed out to a banned identity")
	}
}

// TestCostOfSubscriptions: subscriptions beyond an identity's budget are answered without a credential, and the stream
// goes on for other identities.
func TestCostOfSubscriptions(t *testing.T) {
	r := newFixture(t)
	r.shop()
	r.fleet.Report("xds-1").Apply(report("edge", "router"), true)
	a := r.watch("xds-1")
	taken := 0
	for cost := 0; cost <= maxIdentityCost; taken++ {
		cost += subscription{Ref{"shop", fmt.Sprintf("s-%06d", taken)}, identityOf("batch")}.cost()
	}
	go func() {
		m := &secretv1.WatchRequest{}
		for i := range taken {
			m.Subscribe = append(m.Subscribe,
				&secretv1.Subscription{Namespace: "shop", Name: fmt.Sprintf("s-%06d", i), Identity: identityOf("batch")})
		}
		_ = a.stream.Send(m) // the reader has the reason
	}()
	// The subscription beyond the budget is answered at once; the others wait until they are allowed.
	m, err := a.stream.Recv()
	if err != nil || m.GetSubscription().GetName() != fmt.Sprintf("s-%06d", taken-1) || m.GetCredential() != nil {
		t.Fatalf("answer %v, %v", m.GetSubscription(), err)
	}
	if s := a.subscribe("edge", "edge-tls"); !a.next(s) {
		t.Error("another identity is not served")
	}
	long := make([]byte, maxNameBytes+1)
	for i := range long {
		long[i] = 'x'
	}
	a.subscribe("edge", string(long))
	if _, err := a.stream.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("long name: %v", err)
	}
}

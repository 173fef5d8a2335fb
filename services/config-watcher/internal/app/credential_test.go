package app

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	secretv1 "fairlead.dev/proto/fairlead/secret/v1"
)

// secret is a Secret as users write it.
func secret(namespace, name, kind string, entries map[string][]byte) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Secret\ntype: %s\nmetadata:\n  name: %s\n  namespace: %s\n", kind, name, namespace)
	b.WriteString("data:\n")
	for k, v := range entries {
		fmt.Fprintf(&b, "  %s: %s\n", k, base64.StdEncoding.EncodeToString(v))
	}
	return b.String()
}

func tlsSecret(namespace, name string, chain, key []byte) string {
	return secret(namespace, name, "kubernetes.io/tls", map[string][]byte{"tls.crt": chain, "tls.key": key})
}

// reader is an xds-server as far as credentials are concerned.
type reader struct {
	t      testing.TB
	stream grpc.BidiStreamingClient[secretv1.WatchRequest, secretv1.WatchResponse]
}

func (r *running) reader() *reader {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	r.t.Cleanup(cancel)
	stream, err := secretv1.NewSecretServiceClient(r.dial("xds-server")).Watch(ctx, grpc.WaitForReady(true))
	if err != nil {
		r.t.Fatal(err)
	}
	return &reader{r.t, stream}
}

// gateways runs a gateway of the namespace, with the account gatewayOf names, and gives it a Gateway with the
// credentials. It is reported as connected until the test ends.
func (r *running) gateways(namespace string, credentials ...string) {
	r.t.Helper()
	var servers strings.Builder
	for i, name := range credentials {
		fmt.Fprintf(&servers, "  - {port: {number: %d, name: https-%d, protocol: HTTPS}, hosts: [\"*\"], tls: {mode: SIMPLE, credentialName: "+
			"%s}}\n", 8443+i, i, name)
	}
	r.apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: edge-1, namespace: %[1]s, labels: {app: edge}}
spec: {serviceAccountName: gateway}
status: {podIP: 10.0.0.1, phase: Running, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: %[1]s}
spec:
  selector: {app: edge}
  servers:
%[2]s`, namespace, servers.String()))
	r.connect(gatewayOf(namespace))
}

// connect reports a gateway's proxy of the identity until the test ends.
func (r *running) connect(identity string) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r.t.Cleanup(cancel)
	stream, err := configv1.NewConfigServiceClient(r.dial("xds-server")).Report(ctx, grpc.WaitForReady(true))
	if err == nil {
		err = stream.Send(&configv1.ReportRequest{
			Subscriber: &configv1.Subscriber{Instance: "xds-server-test"},
			Proxies: []*configv1.ProxyStatus{{NodeId: "router~10.0.0.1~edge-1.shop~shop.svc.cluster.local", Identity: identity, Namespace: "shop",
				Workload: "edge-1"}},
		})
	}
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func gatewayOf(namespace string) string {
	return "spiffe://cluster.local/ns/" + namespace + "/sa/gateway"
}

func subscription(namespace, name, identity string) *secretv1.Subscription {
	return &secretv1.Subscription{Namespace: namespace, Name: name, Identity: identity}
}

// ask subscribes and returns the answer.
func (r *reader) ask(s *secretv1.Subscription) *secretv1.Credential {
	r.t.Helper()
	if err := r.stream.Send(&secretv1.WatchRequest{Subscribe: []*secretv1.Subscription{s}}); err != nil {
		r.t.Fatal(err)
	}
	return r.next(s)
}

// next receives an answer, which must be to the subscription.
func (r *reader) next(s *secretv1.Subscription) *secretv1.Credential {
	r.t.Helper()
	m, err := r.stream.Recv()
	if err != nil {
		r.t.Fatal(err)
	}
	if !proto.Equal(m.GetSubscription(), s) {
		r.t.Fatalf("answer to %v, want %v", m.GetSubscription(), s)
	}
	return m.GetCredential()
}

// TestCredentialsByReference follows a credential through its life.
func TestCredentialsByReference(t *testing.T) {
	f := newFixture(t)
	r := f.start(f.options())
	chain, key := f.ca.NewServer("shop.example.com")
	r.gateways("shop", "shop-tls", "other-tls", "missing")
	before, _ := r.revisions.Current()
	in := r.reader()
	shop := subscription("shop", "shop-tls", gatewayOf("shop"))
	if c := in.ask(shop); c != nil {
		t.Error("there before it is")
	}
	r.apply(tlsSecret("shop", "shop-tls", chain, key))
	first := in.next(shop)
	if !bytes.Equal(first.GetCertificateChain(), chain) || !bytes.Equal(first.GetPrivateKey(), key) || first.GetVersion() == "" {
		t.Error("not what was stored")
	}
	// What does not change it is not sent: the answer after these is the next subscription's.
	r.apply(tlsSecret("shop", "other-tls", chain, key), tlsSecret("store", "shop-tls", chain, key))
	r.apply(tlsSecret("shop", "shop-tls", chain, key))
	if c := in.ask(subscription("shop", "missing", gatewayOf("shop"))); c != nil {
		t.Error("found what does not exist")
	}
	newChain, newKey := f.ca.NewServer("shop.example.com")
	r.apply(tlsSecret("shop", "shop-tls", newChain, newKey))
	second := in.next(shop)
	if !bytes.Equal(second.GetPrivateKey(), newKey) || second.GetVersion() == first.GetVersion() {
		t.Error("not replaced")
	}
	// A broken one is refused, and the last good one stays: the next answer is the removal's.
	if _, err := r.tryApply(tlsSecret("shop", "shop-tls", chain, newKey)); status.Code(err) != codes.InvalidArgument ||
		!strings.Contains(err.Error(), "Secret shop/shop-tls") {
		t.Errorf("key of another certificate: %v", err)
	}
	if _, err := r.store().Delete(t.Context(),
		&configv1.DeleteRequest{Key: &configv1.ObjectKey{Kind: "Secret", Namespace: "shop", Name: "shop-tls"}}); err != nil {
		t.Fatal(err)
	}
	if c := in.next(shop); c != nil {
		t.Error("still there after it was removed")
	}
	// What is not subscribed any more is not sent.
	if err := in.stream.Send(&secretv1.WatchRequest{Unsubscribe: []*secretv1.Subscription{shop}}); err != nil {
		t.Fatal(err)
	}
	other := subscription("shop", "other-tls", gatewayOf("shop"))
	if c := in.ask(other); c == nil {
		t.Error("other-tls is not there")
	}
	r.apply(tlsSecret("shop", "shop-tls", chain, key))
	r.apply(tlsSecret("shop", "other-tls", newChain, newKey))
	if c := in.next(other); !bytes.Equal(c.GetPrivateKey(), newKey) {
		t.Error("other-tls was not replaced")
	}
	if after, _ := r.revisions.Current(); before != nil && after.Sequence() != before.Sequence() {
		t.Error("Secrets have made a revision")
	}
}

// TestCredentialsOfOthers: whoever may not read a credential is answered as if there were none, now and later.
func TestCredentialsOfOthers(t *testing.T) {
	f := newFixture(t)
	r := f.start(f.options())
	chain, key := f.ca.NewServer("shop.example.com")
	r.gateways("shop", "shop-tls")
	r.apply(tlsSecret("shop", "shop-tls", chain, key))
	in := r.reader()
	for name, identity := range map[string]string{
		"another namespace":    gatewayOf("store"),
		"another trust domain": "spiffe://elsewhere/ns/shop/sa/gateway",
		"no workload":          "spiffe://cluster.local/shop",
		"longer path":          "spiffe://cluster.local/ns/shop/sa/gateway/x",
		"no identity":          "",
		"no SPIFFE":            "https://cluster.local/ns/shop/sa/gateway",
		"escaped":              "spiffe://cluster.local/ns/shop%2f/sa/gateway",
	} {
		if c := in.ask(subscription("shop", "shop-tls", identity)); c != nil {
			t.Errorf("%s: handed out", name)
		}
	}
	newChain, newKey := f.ca.NewServer("shop.example.com")
	r.apply(tlsSecret("shop", "shop-tls", newChain, newKey))
	mine := subscription("shop", "shop-tls", gatewayOf("shop"))
	if c := in.ask(mine); !bytes.Equal(c.GetPrivateKey(), newKey) {
		t.Error("not handed out to its own namespace")
	}
}

// TestAuthorities: "<name>-cacert" is the Secret of that name or the authority beside a server's certificate, and never
// a key.
func TestAuthorities(t *testing.T) {
	f := newFixture(t)
	r := f.start(f.options())
	chain, key := f.ca.NewServer("shop.example.com")
	r.gateways("shop", "shop-tls")
	own, beside := testkit.PKI(t).RootPEM, testkit.PKI(t).RootPEM
	r.apply(secret("shop", "shop-tls", "Opaque", map[string][]byte{"cert": chain, "key": key, "cacert": beside, "crl": f.ca.Revoke()}))
	in := r.reader()
	ask := subscription("shop", "shop-tls-cacert", gatewayOf("shop"))
	c := in.ask(ask)
	if !bytes.Equal(c.GetCaCertificates(), beside) || len(c.GetPrivateKey())+len(c.GetCertificateChain()) > 0 || len(c.GetCrl()) == 0 {
		t.Errorf("beside the certificate: authority of %d bytes, key of %d", len(c.GetCaCertificates()), len(c.GetPrivateKey()))
	}
	r.apply(secret("shop", "shop-tls-cacert", "Opaque", map[string][]byte{"ca.crt": own, "tls.crt": chain, "tls.key": key}))
	if c = in.next(ask); !bytes.Equal(c.GetCaCertificates(), own) || len(c.GetPrivateKey())+len(c.GetCrl()) > 0 {
		t.Error("a Secret of its own does not go first, or shows its key")
	}
	if _, err := r.store().Delete(t.Context(),
		&configv1.DeleteRequest{Key: &configv1.ObjectKey{Kind: "Secret", Namespace: "shop", Name: "shop-tls-cacert"}}); err != nil {
		t.Fatal(err)
	}
	if c = in.next(ask); !bytes.Equal(c.GetCaCertificates(), beside) {
		t.Error("does not go back")
	}
}

func TestTooMuchAskedFor(t *testing.T) {
	f := newFixture(t)
	r := f.start(f.options())
	in := r.reader()
	if err := in.stream.Send(&secretv1.WatchRequest{
		Subscribe: []*secretv1.Subscription{subscription("shop", strings.Repeat("x", 254), "")}}); err != nil {
		t.Fatal(err)
	}
	if _, err := in.stream.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("long name: %v", err)
	}
	in = r.reader()
	go func() {
		for i := range 25 {
			m := &secretv1.WatchRequest{}
			for j := range 1000 {
				m.Subscribe = append(m.Subscribe, subscription("shop", fmt.Sprintf("s-%d-%d", i, j), gatewayOf(fmt.Sprint("other-", i))))
			}
			if in.stream.Send(m) != nil {
				return
			}
		}
	}()
	answers := 0
	for {
		_, err := in.stream.Recv()
		if err != nil {
			if status.Code(err) != codes.ResourceExhausted || answers != 20_000 {
				t.Errorf("after %d answers: %v", answers, err)
			}
			return
		}
		answers++
	}
}

// journal keeps what is logged.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

// TestKeysShowNowhere calls everything there is beside SecretService and looks for a key in what comes back, in every
// form it may have.
func TestKeysShowNowhere(t *testing.T) {
	f := newFixture(t)
	log := &journal{}
	o := f.options()
	files := t.TempDir()
	o.ConfigDirs, o.AdminJWKSFile, o.AdminIssuer = []string{files}, f.issuer.JWKSFile, f.issuer.Name
	chain, key := f.ca.NewServer("shop.example.com")
	_, other := f.ca.NewServer("shop.example.com")
	inFile := tlsSecret("shop", "from-file", chain, key)
	testkit.WriteFile(t, files+"/good.yaml", []byte(inFile))
	testkit.WriteFile(t, files+"/bad.yaml", []byte(tlsSecret("shop", "mismatch", chain, other)+"---\n"+
		strings.Replace(tlsSecret("shop", "untidy", chain, key), "tls.key: ", "tls.key: [", 1)+"---\n"+
		strings.Replace(tlsSecret("shop", "unknown", chain, key), "data:", "date:", 1)+"---\n"+
		strings.Replace(tlsSecret("shop", "typed", chain, key), "tls.key: ", "tls.key: !!binary ", 1)+"---\n"+
		"apiVersion: v1\nkind: Secret\nmetadata: {name: plain, namespace: shop}\nstringData:\n  tls.crt: x\n  tls.key: "+fmt.Sprintf("%q", key)+
		"\n---\n"+
		"apiVersion: v1\nkind: Secret\nmetadata: {name: pem, namespace: shop}\ndata:\n  tls.crt: x\n  tls.key: "+fmt.Sprintf("%q", key)+"\n"))
	r := f.start(o, func(d *deps) {
		d.Log = slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	r.WaitReady()

	var out strings.Builder
	show := func(m proto.Message, err error) {
		fmt.Fprintf(&out, "%v\n%+v\n", m, err)
		if err != nil {
			for _, d := range status.Convert(err).Details() {
				fmt.Fprintf(&out, "%v\n", d)
			}
			return
		}
		js, _ := protojson.Marshal(m)
		raw, _ := proto.Marshal(m)
		fmt.Fprintf(&out, "%s\n%s\n%s\n", js, raw, prototext.Format(m))
	}
	annotated := strings.Replace(tlsSecret("shop", "shop-tls", chain, key), "  name:",
		"  annotations: {kubectl.kubernetes.io/last-applied-configuration: "+fmt.Sprintf("%q", key)+"}\n  name:", 1)
	show(r.tryApply(annotated))
	show(r.tryApply(annotated + "---\n" + tlsSecret("shop", "mismatch", chain, other)))
	show(r.tryApply(strings.Replace(tlsSecret("shop", "untidy", chain, key), "tls.key: ", "tls.key: [", 1)))
	store := r.store()
	ctx := t.Context()
	id := &configv1.ObjectKey{Kind: "Secret", Namespace: "shop", Name: "shop-tls"}
	got, err := store.Get(ctx, &configv1.GetRequest{Key: id})
	show(got, err)
	if !strings.Contains(string(got.GetObject().GetManifest()), `"tls.key":"(redacted)"`) {
		t.Errorf("the entries' names do not show: %s", got.GetObject().GetManifest())
	}
	list, err := store.List(ctx, &configv1.ListRequest{Namespace: "shop"})
	show(list, err)
	show(store.Create(ctx, &configv1.CreateRequest{Manifest: []byte(tlsSecret("shop", "created", chain, key))}))
	show(store.Update(ctx, &configv1.UpdateRequest{Manifest: []byte(tlsSecret("shop", "created", chain, other))}))
	show(store.Patch(ctx, &configv1.PatchRequest{Key: id, Patch: []byte(`{"metadata": {"labels": {"a": "b"}}}`)}))
	show(store.UpdateStatus(ctx, &configv1.UpdateStatusRequest{Key: id, Status: []byte(`{}`)}))
	// What was read cannot be written back by mistake.
	if _, err := store.Update(ctx, &configv1.UpdateRequest{Manifest: got.GetObject().GetManifest()}); status.Code(err) == codes.OK {
		t.Error("redacted values were stored")
	}
	watch, err := store.Watch(ctx, &configv1.ConfigStoreServiceWatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for synced := false; !synced; {
		m, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		show(m, nil)
		synced = m.GetType() == configv1.EventType_EVENT_TYPE_SYNCED
	}
	sub := r.subscribe(nil, nil)
	sub.next()
	for _, res := range sub.held {
		show(res, nil)
		if res.GetKey().GetKind() == "Secret" {
			t.Error("a Secret is part of a revision")
		}
	}
	admin := f.admin()
	pages := 0
	for _, h := range r.Ops.Handlers() {
		if strings.Contains(h.Path, "pprof/") {
			continue
		}
		body := r.body(t, h.Path, admin)
		pages++
		out.WriteString(body)
		if h.Path == "/debug/credentials" && !strings.Contains(body, "shop.example.com") {
			t.Errorf("/debug/credentials: %s", body)
		}
	}
	if pages < 6 {
		t.Errorf("only %d pages", pages)
	}
	r.Stop()
	log.mu.Lock()
	defer log.mu.Unlock()
	out.WriteString(log.text.String())
	if !strings.Contains(out.String(), "Secret shop/mismatch") {
		t.Error("the refused Secret is named nowhere")
	}
	for _, k := range [][]byte{key, other} {
		for _, form := range formsOf(k) {
			if at := strings.Index(out.String(), form); at >= 0 {
				t.Errorf("a key shows: ...%s...", out.String()[max(0, at-200):at])
			}
		}
	}
}

// formsOf are parts of a key in the forms it may show in: as PEM, as base64 of that at any offset, and in hexadecimal.
func formsOf(key []byte) []string {
	lines := strings.Split(string(key), "\n")
	inner := lines[1]
	forms := []string{inner[8:32], hex.EncodeToString([]byte(inner[8:24]))}
	at := strings.Index(string(key), inner)
	for shift := range 3 {
		text := base64.StdEncoding.EncodeToString(key[at+shift : at+shift+24])
		forms = append(forms, text[:28])
	}
	numbers := []string{}
	for _, b := range key[at+8 : at+20] {
		numbers = append(numbers, strconv.Itoa(int(b)))
	}
	return append(forms, strings.Join(numbers, " "))
}

package accounts

import (
	"context"
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/rejection"
)

var made = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// object is the metadata of a service account or Pod.
func object(kind, namespace, name, uid string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: kind},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid), CreationTimestamp: metav1.NewTime(made)},
	}
}

func newRegistry(t *testing.T, objects ...runtime.Object) (*Registry, *metadatafake.FakeMetadataClient) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	client := metadatafake.NewSimpleMetadataClient(scheme, objects...)
	return New(client, testkit.NewClock(made.Add(time.Hour))), client
}

func run(t *testing.T, task func(context.Context) error, ready func() error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- task(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	testkit.Eventually(t, testkit.Patience, ready)
}

func reason(err error) rejection.Reason {
	if rejected, ok := rejection.From(err); ok {
		return rejected.Reason
	}
	if err != nil {
		return rejection.Reason(err.Error())
	}
	return ""
}

func TestCredentialsOfWhatIsGoneAreRefused(t *testing.T) {
	ca := testkit.PKI(t)
	web := ca.ID("shop", "web")
	token := func(account, pod, podUID string) auth.Peer {
		return auth.Peer{ID: web, Method: auth.MethodJWT, Token: &auth.Token{AccountUID: account, Pod: pod, PodUID: podUID}}
	}
	byCertificate := auth.Peer{ID: web, Method: auth.MethodMTLS}
	there := []runtime.Object{object("ServiceAccount", "shop", "web", "a1"), object("Pod", "shop", "web-0", "p1")}
	for name, tc := range map[string]struct {
		objects []runtime.Object
		caller  auth.Peer
		since   time.Time
		want    rejection.Reason
	}{
		"a token":                              {there, token("a1", "", ""), time.Time{}, ""},
		"a token of a Pod":                     {there, token("a1", "web-0", "p1"), time.Time{}, ""},
		"of a deleted account":                 {nil, token("a1", "", ""), time.Time{}, rejection.AccountGone},
		"of an account that was made again":    {there, token("a0", "", ""), time.Time{}, rejection.AccountReplaced},
		"of a deleted Pod":                     {there[:1], token("a1", "web-0", "p1"), time.Time{}, rejection.PodGone},
		"of a Pod that was made again":         {there, token("a1", "web-0", "p0"), time.Time{}, rejection.PodGone},
		"without UIDs":                         {there, token("", "", ""), time.Time{}, rejection.TokenClaims},
		"a certificate":                        {there, byCertificate, made.Add(time.Minute), ""},
		"a certificate of a deleted account":   {nil, byCertificate, made.Add(time.Minute), rejection.AccountGone},
		"a certificate older than its account": {there, byCertificate, made.Add(-time.Hour), rejection.AccountReplaced},
		"an account that was made at once":     {there, byCertificate, made.Add(-time.Second), ""},
	} {
		for _, follows := range []bool{true, false} {
			r, _ := newRegistry(t, tc.objects...)
			if follows {
				run(t, r.Run, r.Ready)
			}
			for range 2 {
				if got := reason(r.Check(t.Context(), tc.caller, tc.since)); got != tc.want {
					t.Errorf("%s, followed %v: %q, want %q", name, follows, got, tc.want)
				}
			}
		}
	}
}

func TestNothingIsIssuedOnDoubt(t *testing.T) {
	ca := testkit.PKI(t)
	r, client := newRegistry(t, object("ServiceAccount", "shop", "web", "a1"))
	run(t, r.Run, r.Ready)
	client.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("away") })
	known := auth.Peer{ID: ca.ID("shop", "web"), Method: auth.MethodJWT, Token: &auth.Token{AccountUID: "a1"}}
	if err := r.Check(t.Context(), known, time.Time{}); err != nil {
		t.Errorf("an account that the watch knows, while the API server is away: %v", err)
	}
	for name, who := range map[string]auth.Peer{
		"an unknown account": {ID: ca.ID("shop", "new"), Method: auth.MethodJWT, Token: &auth.Token{AccountUID: "a2"}},
		"another UID":        {ID: ca.ID("shop", "web"), Method: auth.MethodJWT, Token: &auth.Token{AccountUID: "a2"}},
	} {
		if got := reason(r.Check(t.Context(), who, time.Time{})); got != rejection.APIUnavailable {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// One identity's dead token does not spend the questions of all.
func TestQuestionsAreBounded(t *testing.T) {
	ca := testkit.PKI(t)
	r, client := newRegistry(t)
	asked, answer := make(chan struct{}, 100), make(chan struct{})
	client.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		asked <- struct{}{}
		<-answer
		return true, nil, errors.New("away")
	})
	dead := auth.Peer{ID: ca.ID("shop", "dead"), Method: auth.MethodMTLS}
	results := make(chan rejection.Reason, 100)
	for range askEach {
		go func() { results <- reason(r.Check(t.Context(), dead, made)) }()
	}
	<-asked
	testkit.Eventually(t, testkit.Patience, func() error {
		if r.asking.Load().Held != askEach {
			return errors.New("not all ask yet")
		}
		return nil
	})
	if got := reason(r.Check(t.Context(), dead, made)); got != rejection.APIUnavailable {
		t.Errorf("one more question: %q", got)
	}
	close(answer)
	for range askEach {
		<-results
	}
	if n := r.asking.Load().Held; n != 0 {
		t.Errorf("%d questions are counted", n)
	}
}

func TestBannedIdentitiesAreRefused(t *testing.T) {
	ca := testkit.PKI(t)
	ban := func(name, identity, until string) *unstructured.Unstructured {
		spec := map[string]any{"identity": identity, "reason": "stolen"}
		if until != "" {
			spec["until"] = until
		}
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "fairlead.dev/v1", "kind": "IdentityBan", "metadata": map[string]any{"name": name}, "spec": spec,
		}}
	}
	banned, over, server := ca.ID("shop", "web"), ca.ID("shop", "back"), ca.ID("istio-system", "xds-server")
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{identityBans: "IdentityBanList"},
		ban("a", banned.String(), ""), ban("b", over.String(), made.Format(time.RFC3339)), ban("c", server.String(), ""))
	b := NewBans(client, testkit.NewClock(made.Add(time.Hour)), server)
	if got := reason(b.Check(banned)); got != rejection.APIUnavailable {
		t.Errorf("before the bans are read: %q", got)
	}
	run(t, b.Run, b.Ready)
	if got := reason(b.Check(banned)); got != rejection.Banned {
		t.Errorf("a banned identity: %q", got)
	}
	if err := errors.Join(b.Check(over), b.Check(server), b.Check(ca.ID("shop", "other"))); err != nil {
		t.Error(err)
	}
	if err := client.Resource(identityBans).Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, testkit.Patience, func() error { return b.Check(banned) })
}

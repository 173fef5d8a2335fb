package cabackups

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"fairlead.dev/proto/fairlead/cabackup"
)

func archive() *cabackup.Archive {
	return &cabackup.Archive{Program: "1", TrustDomain: "cluster.local", In: cabackup.Place{Namespace: "mesh", Name: "state"},
		Record:  json.RawMessage(`{"epoch":4,"lastID":1,"current":{"id":1,"name":"disk"},"step":"idle","bundle":{"generation":7}}`),
		Secrets: []cabackup.Secret{{Place: cabackup.Place{Namespace: "mesh", Name: "keys"}, Data: map[string][]byte{"signer-1-root.pem": []byte("key")}}}}
}

// here is a ca that makes the archive.
func here(t *testing.T, asked *[]string) Run {
	t.Helper()
	return func(_ context.Context, more []string) ([]byte, error) {
		*asked = append(*asked, more...)
		var text []string
		for _, m := range more {
			if r, ok := strings.CutPrefix(m, "--recipient="); ok {
				text = append(text, r)
			}
		}
		to, err := cabackup.ParseRecipients(strings.Join(text, "\n"))
		if err != nil {
			return nil, err
		}
		a := archive()
		sealed, err := cabackup.Seal(a, to...)
		if err != nil {
			return nil, err
		}
		return json.Marshal(cabackup.Sealed{Summary: a.Summary(), Archive: sealed})
	}
}

func TestABackupIsForItsRecipients(t *testing.T) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	var asked []string
	sealed, err := Make(t.Context(), here(t, &asked), []string{id.Recipient().String()})
	if err != nil || sealed.Summary.Epoch != 4 || !slices.Contains(asked, "--summary") {
		t.Fatalf("%+v, %v", sealed, err)
	}
	if _, err := cabackup.Open(sealed.Archive, id); err != nil {
		t.Error(err)
	}
	for _, answer := range []string{"", "plain", `{"archive":"cGxhaW4="}`} {
		run := func(context.Context, []string) ([]byte, error) { return []byte(answer), nil }
		if _, err := Make(t.Context(), run, nil); err == nil || !strings.Contains(err.Error(), "older than this command") {
			t.Errorf("%q: %v", answer, err)
		}
	}
}

func TestAPassphraseStaysHere(t *testing.T) {
	const phrase = "correct horse battery"
	to, with, err := cabackup.Passphrase(phrase)
	if err != nil {
		t.Fatal(err)
	}
	to.(*age.ScryptRecipient).SetWorkFactor(10)
	var asked []string
	sealed, err := MakeWithPassphrase(t.Context(), here(t, &asked), to)
	if err != nil || strings.Contains(fmt.Sprint(asked), "horse") {
		t.Fatalf("asked for %v: %v", asked, err)
	}
	if _, err := cabackup.Open(sealed.Archive, with); err != nil {
		t.Error(err)
	}
}

func secret(name string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "mesh", Name: name}, Type: corev1.SecretTypeOpaque, Data: data}
}

func TestRestore(t *testing.T) {
	for name, tc := range map[string]struct {
		there  []runtime.Object
		change func(*cabackup.Archive, *Target)
		says   string
		epoch  uint64
	}{
		"to an empty namespace":    {epoch: 5},
		"beside entries of others": {there: []runtime.Object{secret("keys", map[string][]byte{"notes": []byte("mine")})}, epoch: 5},
		"over a record": {there: []runtime.Object{secret("state", map[string][]byte{"state.json": []byte("{}")})},
			says: "there is a ca already"},
		"over keys": {there: []runtime.Object{secret("keys", map[string][]byte{"a.pem": nil})},
			says: "entry a.pem of Secret mesh/keys"},
		"over another ca by force": {there: []runtime.Object{secret("state", map[string][]byte{"state.json": []byte(
			`{"epoch":9,"lastID":1,"current":{"id":1},"step":"idle"}`)})},
			change: func(_ *cabackup.Archive, t *Target) { t.Force = true }, epoch: 10},
		"of another trust domain": {change: func(_ *cabackup.Archive, t *Target) { t.TrustDomain = "other" }, says: "of trust domain"},
		"into another namespace":  {change: func(_ *cabackup.Archive, t *Target) { t.Namespace = "other" }, says: "--istioNamespace"},
		"without Secrets": {change: func(a *cabackup.Archive, _ *Target) { a.In, a.Secrets = cabackup.Place{}, nil },
			says: "restore it there with `ca restore`"},
		"over somebody's token": {there: []runtime.Object{&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "mesh", Name: "keys"},
			Type: corev1.SecretTypeServiceAccountToken}}, change: func(_ *cabackup.Archive, t *Target) { t.Force = true }, says: "not one of a ca"},
	} {
		t.Run(name, func(t *testing.T) {
			api := fake.NewClientset(tc.there...)
			a, target := archive(), Target{API: api.CoreV1(), Namespace: "mesh", TrustDomain: "cluster.local"}
			if tc.change != nil {
				tc.change(a, &target)
			}
			err := Restore(t.Context(), a, target)
			if tc.says != "" {
				if err == nil || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("got %v, want %q", err, tc.says)
				}
				for _, action := range api.Actions() {
					if action.GetVerb() != "get" {
						t.Errorf("it has changed something: %v", action)
					}
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			wantRestored(t, api, tc.epoch)
		})
	}
}

func wantRestored(t *testing.T, api *fake.Clientset, epoch uint64) {
	t.Helper()
	state, err := api.CoreV1().Secrets("mesh").Get(t.Context(), "state", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := cabackup.ParseRecord(state.Data["state.json"])
	if err != nil || r.Epoch != epoch || r.Bundle.Generation != 7 {
		t.Errorf("record %+v, %v", r, err)
	}
	keys, err := api.CoreV1().Secrets("mesh").Get(t.Context(), "keys", metav1.GetOptions{})
	if err != nil || string(keys.Data["signer-1-root.pem"]) != "key" {
		t.Errorf("keys %v, %v", keys, err)
	}
	for entry, data := range keys.Data {
		if entry == "notes" && string(data) != "mine" {
			t.Error("an entry of others is lost")
		}
	}
}

// A restoring that ends after the record goes on with --force.
func TestARestoreThatFailsCanBeDoneAgain(t *testing.T) {
	api := fake.NewClientset()
	fail := true
	api.PrependReactor("create", "secrets", func(action k8stesting.Action) (bool, runtime.Object, error) {
		made := action.(k8stesting.CreateAction).GetObject().(*corev1.Secret)
		return fail && made.Name == "keys", nil, errors.New("the API server is away")
	})
	target := Target{API: api.CoreV1(), Namespace: "mesh", TrustDomain: "cluster.local"}
	if err := Restore(t.Context(), archive(), target); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Fatalf("got %v", err)
	}
	fail = false
	if err := Restore(t.Context(), archive(), target); !errors.Is(err, cabackup.ErrExists) {
		t.Errorf("without --force: %v", err)
	}
	target.Force = true
	if err := Restore(t.Context(), archive(), target); err != nil {
		t.Fatal(err)
	}
	wantRestored(t, api, 6)
}

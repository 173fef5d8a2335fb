package app

import (
	"context"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/revision"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// TestFollowingTheRootNamespace: what is read in the root namespace is read in the one of the newest revision, and no
// more in the one before.
func TestFollowingTheRootNamespace(t *testing.T) {
	log := revision.NewLog("epoch", testkit.NewClock(time.Unix(0, 0)))
	mesh := normalise.New(normalise.Config{})
	settings := func(text string) {
		docs, problems := manifest.Parse("mesh.yaml", []byte("{apiVersion: v1, kind: ConfigMap, "+
			"metadata: {name: istio, namespace: istio-system}, data: {mesh: '"+text+"'}}"))
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		o, err := validate.Document(docs[0])
		testkit.NoError(t, err)
		d := mesh.Apply([]normalise.Change{{Key: o.Key, Object: o}})
		log.Commit(d.Upserts, d.Removed, "")
	}
	type call struct {
		ctx       context.Context
		namespace string
	}
	calls, ended := make(chan call), make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		ended <- (&rootNamespace{revisions: log}).follow(ctx, func(ctx context.Context, namespace string) error {
			calls <- call{ctx, namespace}
			<-ctx.Done()
			return nil
		})
	}()
	want := func(namespace string) context.Context {
		t.Helper()
		c := <-calls
		if c.namespace != namespace {
			t.Fatalf("reads namespace %s, want %s", c.namespace, namespace)
		}
		return c.ctx
	}
	before := want(kinds.MeshNamespace)
	settings("trustDomain: a")
	settings("rootNamespace: root")
	now := want("root")
	if before.Err() == nil {
		t.Error("still reads the namespace before")
	}
	settings("{rootNamespace: root, trustDomain: b}")
	if now.Err() != nil {
		t.Error("a change of something else begins anew")
	}
	cancel()
	testkit.NoError(t, <-ended)
}

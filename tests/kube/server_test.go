package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/kubeapi"
)

// startLimit bounds the start of etcd and the API server.
const startLimit = 10 * time.Second

func TestAPIServerIsReadyWithin10s(t *testing.T) {
	testkit.Quick(t, startLimit, func() time.Duration {
		var took time.Duration
		t.Run("start", func(t *testing.T) { took = kubeapi.Start(t, kubeapi.Options{}).Took })
		t.Logf("etcd and kube-apiserver are ready after %.1f s", took.Seconds())
		return took
	})
}

func TestAPIServer(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{Controllers: []string{"namespace-controller"}})
	client := s.Client(t)

	t.Run("serves the mesh's kinds", func(t *testing.T) {
		began := time.Now()
		names := s.ApplyCRDs(t)
		t.Logf("%d CustomResourceDefinitions are established after %.1f s", len(names), time.Since(began).Seconds())
		if len(names) < 14 {
			t.Errorf("the file defines %v only", names)
		}
		s.Apply(t, `{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: x}, spec: {hosts: [a.example], resolution: NONE}}`)
	})

	t.Run("has a version", func(t *testing.T) {
		version, err := client.Discovery().ServerVersion()
		if err != nil || !strings.HasPrefix(version.GitVersion, "v1.") || version.Major != "1" {
			t.Errorf("the API server says that it is %+v, %v", version, err)
		}
	})

	t.Run("allows what was granted", func(t *testing.T) {
		for name, as := range map[string]struct {
			kubeconfig string
			grant      func(...string)
		}{
			"a user": {s.User(t, "alice"), func(verbs ...string) {
				s.Grant(t, kubeapi.UserSubject("alice"), kubeapi.Rule("", []string{"services"}, verbs...))
			}},
			"a service account": {s.ServiceAccount(t, "accounts", "bob"), func(verbs ...string) {
				s.Grant(t, kubeapi.ServiceAccountSubject("accounts", "bob"), kubeapi.Rule("", []string{"services"}, verbs...))
			}},
		} {
			theirs, err := kubernetes.NewForConfig(kubeapi.Load(t, as.kubeconfig))
			if err != nil {
				t.Fatal(err)
			}
			list := func() error {
				_, err := theirs.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
				return err
			}
			forbidden := func() error {
				if err := list(); !apierrors.IsForbidden(err) {
					return fmt.Errorf("%s without a grant gets %w", name, err)
				}
				return nil
			}
			if err := forbidden(); err != nil {
				t.Error(err)
			}
			as.grant("list")
			testkit.Eventually(t, testkit.Patience, list)
			as.grant("get")
			testkit.Eventually(t, testkit.Patience, forbidden)
		}
	})

	t.Run("deletes namespaces", func(t *testing.T) {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "doomed"}}
		if _, err := client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.Apply(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: doomed}}`)
		if err := client.CoreV1().Namespaces().Delete(t.Context(), "doomed", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, testkit.Patience, func() error {
			if _, err := client.CoreV1().Namespaces().Get(t.Context(), "doomed", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return errors.New("the namespace is there")
			}
			return nil
		})
	})

	t.Run("is away and comes back with its objects", func(t *testing.T) {
		s.Apply(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: kept}}`)
		for name, end := range map[string]func(){"stopped": func() { s.Stop(t) }, "killed": s.Kill} {
			end()
			if err := kubeapi.Ready(t.Context(), client); err == nil {
				t.Errorf("an API server that was %s answers", name)
			}
			began := time.Now()
			s.Resume(t)
			if _, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
				t.Errorf("after it was %s: %v", name, err)
			}
			t.Logf("an API server that was %s is back after %.1f s", name, time.Since(began).Seconds())
		}
	})

	t.Run("forgets old revisions: watches after a restart, lists after Compact", func(t *testing.T) {
		for _, name := range []string{"one", "two"} {
			s.Apply(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: `+name+`, namespace: kube-public}}`)
		}
		maps := client.CoreV1().ConfigMaps("kube-public")
		before, err := maps.List(t.Context(), metav1.ListOptions{Limit: 1})
		if err != nil || before.Continue == "" {
			t.Fatalf("a list of one in two continues at %q, %v", before.Continue, err)
		}
		rest := metav1.ListOptions{Limit: 1, Continue: before.Continue}
		s.Apply(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: later, namespace: kube-public}}`)
		if _, err := maps.List(t.Context(), rest); err != nil {
			t.Errorf("the list does not continue: %v", err)
		}
		s.Compact(t)
		s.Restart(t)
		if _, err := maps.List(t.Context(), rest); !apierrors.IsResourceExpired(err) {
			t.Errorf("a list that begins before Compact continues: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		defer cancel()
		w, err := maps.Watch(ctx, metav1.ListOptions{ResourceVersion: before.ResourceVersion})
		if err == nil {
			defer w.Stop()
			err = apierrors.FromObject((<-w.ResultChan()).Object)
		}
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			t.Errorf("a watch from before the restart begins: %v", err)
		}
	})
}

func TestMissingProgramsAreNamed(t *testing.T) {
	t.Setenv("KUBE_BIN", t.TempDir())
	if _, err := kubeapi.Program("etcd"); err == nil || !strings.Contains(err.Error(), "no etcd in") ||
		!strings.Contains(err.Error(), "make test-kube") {
		t.Errorf("got %v", err)
	}
	if err := os.Unsetenv("KUBE_BIN"); err != nil {
		t.Fatal(err)
	}
	if _, err := kubeapi.Program("etcd"); !errors.Is(err, kubeapi.ErrNoPrograms) {
		t.Errorf("got %v", err)
	}
}

package secret

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/clientcmd"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/ca/internal/record"
	"fairlead.dev/services/ca/internal/record/recordtest"
	"fairlead.dev/services/ca/internal/secretstest"
)

const (
	namespace = "mesh"
	name      = "ca-state"
)

func newStore(api kubernetes.Interface) *Store {
	return New(Config{API: api, Namespace: namespace, Name: name})
}

func TestContract(t *testing.T) {
	api := secretstest.Versioned()
	recordtest.Contract(t, func() record.Store { return newStore(api) })
}

// kubeconfigVariable names the file of an administrator of an API server in which the test may make a namespace.
const kubeconfigVariable = "CA_TEST_KUBECONFIG"

func TestRealAPIServer(t *testing.T) {
	file := os.Getenv(kubeconfigVariable)
	if file == "" {
		t.Skipf("%s names no kubeconfig: run `make test-kube`, whose test TestStateInASecret sets it", kubeconfigVariable)
	}
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	api := client(t, config)
	at := Config{API: api, Namespace: fmt.Sprintf("state-%d", time.Now().UnixNano()), Name: name}
	if _, err := New(at).Save(t.Context(), []byte("one"), ""); errors.Is(err, record.ErrChanged) ||
		!strings.Contains(fmt.Sprint(err), "make the namespace") {
		t.Errorf("without the namespace: %v", err)
	}
	if _, err := api.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: at.Namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	recordtest.Contract(t, func() record.Store { return New(at) })

	nobody := rest.CopyConfig(config)
	nobody.Impersonate.UserName = "nobody"
	stranger := at
	stranger.API = client(t, nobody)
	recordtest.Follow(t, New(stranger)).WaitProblem(t, "let the ca's service account get, create, update and watch")
	away := rest.CopyConfig(config)
	away.Host = "https://127.0.0.1:1"
	gone := at
	gone.API = client(t, away)
	recordtest.Follow(t, New(gone)).WaitProblem(t, "connection refused")
	if _, err := New(gone).Save(t.Context(), []byte("x"), ""); err == nil || errors.Is(err, record.ErrChanged) {
		t.Errorf("without an API server: %v", err)
	}
	deletedAndImmutable(t, at)
}

func client(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return api
}

func deletedAndImmutable(t *testing.T, at Config) {
	t.Helper()
	s, secrets := New(at), at.API.CoreV1().Secrets(at.Namespace)
	seen := recordtest.Follow(t, s)
	seen.Wait(t, "20")
	if err := secrets.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	seen.WaitProblem(t, "was deleted")
	if _, err := s.Save(t.Context(), []byte("x"), record.Version([]byte("20"))); !errors.Is(err, record.ErrChanged) {
		t.Errorf("a lost record was replaced: %v", err)
	}
	made := recordtest.Save(t, s, "again", "")
	seen.Wait(t, "again")
	seen.WaitProblem(t, "")
	found, err := secrets.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if found.Labels[contract.ManagedByLabel] != contract.ManagedByCA || found.Type != corev1.SecretTypeOpaque {
		t.Errorf("labels %v, type %s", found.Labels, found.Type)
	}
	found.Immutable = new(true)
	if _, err := secrets.Update(t.Context(), found, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Save(t.Context(), []byte("x"), made.Version); err == nil || !strings.Contains(err.Error(), "immutable") {
		t.Errorf("in an immutable Secret: %v", err)
	}
}

// object is the Secret with these entries.
func object(data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"team": "a"}}, Data: data}
}

// Others change labels and entries of the Secret between the ca's reading and writing.
func TestChangesOfOthersStay(t *testing.T) {
	api := secretstest.Versioned(object(map[string][]byte{Key: []byte("one"), "notes": []byte("mine")}))
	s := newStore(api)
	one, err := s.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	changes := 0
	api.PrependReactor("update", "secrets", func(action k8stesting.Action) (bool, runtime.Object, error) {
		if changes++; changes > 3 {
			return false, nil, nil
		}
		found, err := api.Tracker().Get(secretstest.Resource, namespace, name)
		if err != nil {
			return true, nil, err
		}
		other := found.(*corev1.Secret).DeepCopy()
		other.ResourceVersion, other.Data["notes"] = fmt.Sprint("by another ", changes), []byte(fmt.Sprint(changes))
		if err := api.Tracker().Update(secretstest.Resource, other, namespace); err != nil {
			return true, nil, err
		}
		return false, nil, nil
	})
	recordtest.Save(t, s, "two", one.Version)
	found, err := api.CoreV1().Secrets(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || string(found.Data[Key]) != "two" || string(found.Data["notes"]) != "3" || found.Labels["team"] != "a" {
		t.Errorf("%v, %v", found, err)
	}
	changes = -1000
	api.PrependReactor("update", "secrets", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewConflict(secretstest.Resource.GroupResource(), name, errors.New("always"))
	})
	if _, err := s.Save(t.Context(), []byte("three"), record.Version([]byte("two"))); err == nil || errors.Is(err, record.ErrChanged) ||
		!strings.Contains(err.Error(), "10 times") {
		t.Errorf("with conflicts without end: %v", err)
	}
}

// A Secret without the entry is one that somebody has emptied: a ca that began anew would use its numbers twice.
func TestAnEmptySecretIsNoFirstStart(t *testing.T) {
	for title, data := range map[string]map[string][]byte{"none": nil, "others": {"x": []byte("y")}, "empty": {Key: nil}} {
		s := newStore(secretstest.Versioned(object(data)))
		if _, err := s.Load(t.Context()); err == nil || errors.Is(err, record.ErrNone) || !strings.Contains(err.Error(), "mesh/ca-state") {
			t.Errorf("%s: load: %v", title, err)
		}
		if _, err := s.Save(t.Context(), []byte("x"), ""); err == nil {
			t.Errorf("%s: saved", title)
		}
	}
}

// A write whose answer is lost may have been done, and Load tells.
func TestALostAnswer(t *testing.T) {
	api := secretstest.Versioned(object(map[string][]byte{Key: []byte("one")}))
	s := newStore(api)
	lost := true
	api.PrependReactor("update", "secrets", func(action k8stesting.Action) (bool, runtime.Object, error) {
		if !lost {
			return false, nil, nil
		}
		lost = false
		if err := api.Tracker().Update(secretstest.Resource, action.(k8stesting.UpdateAction).GetObject(), namespace); err != nil {
			return true, nil, err
		}
		return true, nil, apierrors.NewTimeoutError("lost", 1)
	})
	if _, err := s.Save(t.Context(), []byte("two"), record.Version([]byte("one"))); err == nil || errors.Is(err, record.ErrChanged) {
		t.Errorf("got %v", err)
	}
	if _, err := s.Save(t.Context(), []byte("two'"), record.Version([]byte("one"))); !errors.Is(err, record.ErrChanged) {
		t.Errorf("written twice: %v", err)
	}
	if now, err := s.Load(t.Context()); err != nil || string(now.Data) != "two" {
		t.Errorf("got %q, %v", now.Data, err)
	}
}

// Watches end all the time, and some API servers allow none.
func TestFollowOutlivesItsWatch(t *testing.T) {
	api := secretstest.Versioned()
	refuse := true
	var mu sync.Mutex
	api.PrependWatchReactor("secrets", func(k8stesting.Action) (bool, watch.Interface, error) {
		mu.Lock()
		defer mu.Unlock()
		if refuse {
			return true, nil, apierrors.NewForbidden(secretstest.Resource.GroupResource(), name, errors.New("no"))
		}
		ended := watch.NewFake()
		ended.Stop()
		return true, ended, nil
	})
	clock := testkit.NewClock(time.Now())
	s := New(Config{API: api, Namespace: namespace, Name: name, Clock: clock})
	seen := recordtest.Follow(t, s)
	seen.WaitProblem(t, "watch this Secret")
	recordtest.Save(t, s, "one", "")
	clock.WaitFor(t, 1)
	clock.Advance(period)
	clock.WaitFor(t, 1)
	clock.Advance(watchAgain)
	seen.Wait(t, "one")
	mu.Lock()
	refuse = false
	mu.Unlock()
	two := recordtest.Save(t, s, "two", record.Version([]byte("one")))
	testkit.Eventually(t, 10*time.Second, func() error {
		clock.Advance(period)
		if err := seen.Problem(); err != nil || len(seen.Texts()) < 2 {
			return fmt.Errorf("%w, %v", err, seen.Texts())
		}
		return nil
	})
	seen.Wait(t, string(two.Data))
}

// A reading that began before a Save must not pass for newer.
func TestOrderIsThatOfTheAPIServer(t *testing.T) {
	api := secretstest.Versioned(object(map[string][]byte{Key: []byte("one")}))
	s := newStore(api)
	begun, goOn := make(chan struct{}), make(chan struct{})
	var first sync.Once
	api.PrependReactor("get", "secrets", func(k8stesting.Action) (bool, runtime.Object, error) {
		slow := false
		first.Do(func() { slow = true })
		if !slow {
			return false, nil, nil
		}
		found, err := api.Tracker().Get(secretstest.Resource, namespace, name)
		close(begun)
		<-goOn
		return true, found, err
	})
	loaded := make(chan record.Record)
	go func() {
		r, _ := s.Load(context.Background())
		loaded <- r
	}()
	<-begun
	saved := make(chan record.Record)
	go func() {
		r, _ := s.Save(context.Background(), []byte("two"), record.Version([]byte("one")))
		saved <- r
	}()
	close(goOn)
	before, after := <-loaded, <-saved
	if string(before.Data) != "one" || string(after.Data) != "two" || before.Order >= after.Order {
		t.Errorf("loaded %+v, saved %+v", before, after)
	}
}

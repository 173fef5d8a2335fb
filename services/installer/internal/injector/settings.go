package injector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	networking "istio.io/client-go/pkg/apis/networking/v1beta1"
	networkingclient "istio.io/client-go/pkg/clientset/versioned/typed/networking/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/proxyconfig"
	"fairlead.dev/services/installer/internal/inject"
)

// namespaceTimeout is how long a review asks the API server about a namespace that is too new to have been watched.
const namespaceTimeout = 2 * time.Second

const unanswered = "the API server has not answered yet"

// settingsConfig says what is followed. All are required but StateDir.
type settingsConfig struct {
	API                          *rest.Config
	Namespace, ConfigMap         string
	MeshNamespace, MeshConfigMap string
	// Revision is the control plane's, "" for the one without a name.
	Revision   string
	StateDir   string
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// settings follows what decides about Pods. A ConfigMap that is broken, or gone, changes nothing: the last good
// configuration stays in force, in the state directory also across restarts.
type settings struct {
	cfg  settingsConfig
	core coreclient.CoreV1Interface

	config, mesh, namespaces, proxies cache.SharedIndexInformer
	changed                           chan struct{}
	inForce                           atomic.Pointer[inject.Config]

	mu sync.Mutex
	// state is what the page shows.
	state state
	// unread says why ProxyConfigs have not been read; nil also where the API server has no such kind.
	unread error

	upToDate prometheus.Gauge
	rejected prometheus.Counter
}

// state says which configuration is in force.
type state struct {
	// Origin is what the configuration in force is from; "" before the first one.
	Origin string `json:"origin"`
	// Problem says why what is newer is not in force.
	Problem string `json:"problem,omitempty"`
}

func newSettings(cfg settingsConfig) (*settings, error) {
	core, err := coreclient.NewForConfig(cfg.API)
	if err != nil {
		return nil, err
	}
	mesh, err := networkingclient.NewForConfig(cfg.API)
	if err != nil {
		return nil, err
	}
	f := promauto.With(cfg.Registerer)
	s := &settings{
		cfg: cfg, core: core, changed: make(chan struct{}, 1), state: state{Problem: unanswered}, unread: errors.New(unanswered),
		upToDate: f.NewGauge(prometheus.GaugeOpts{
			Name: metricsPrefix + "_configuration_current",
			Help: "1 while the configuration in force is that of the ConfigMaps; 0 while these are broken or gone.",
		}),
		rejected: f.NewCounter(prometheus.CounterOpts{
			Name: metricsPrefix + "_configuration_rejected_total", Help: "Versions of the ConfigMaps that were not put in force.",
		}),
	}
	wake := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { notify.Wake(s.changed) }, UpdateFunc: func(any, any) { notify.Wake(s.changed) },
		DeleteFunc: func(any) { notify.Wake(s.changed) },
	}
	maps := func(namespace, name string) cache.SharedIndexInformer {
		one := fields.OneTermEqualSelector(metav1.ObjectNameField, name)
		return cache.NewSharedIndexInformer(cache.NewListWatchFromClient(core.RESTClient(), "configmaps", namespace, one), &corev1.ConfigMap{},
			0, nil)
	}
	s.config, s.mesh = maps(cfg.Namespace, cfg.ConfigMap), maps(cfg.MeshNamespace, cfg.MeshConfigMap)
	s.namespaces = cache.NewSharedIndexInformer(cache.NewListWatchFromClient(core.RESTClient(), "namespaces", metav1.NamespaceAll,
		fields.Everything()), &corev1.Namespace{}, 0, nil)
	s.proxies = cache.NewSharedIndexInformer(cache.NewListWatchFromClient(mesh.RESTClient(), "proxyconfigs", metav1.NamespaceAll,
		fields.Everything()), &networking.ProxyConfig{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	// The informer has not started yet, so that this cannot fail.
	_ = s.proxies.SetWatchErrorHandlerWithContext(s.unlisted)
	for _, informer := range []cache.SharedIndexInformer{s.config, s.mesh} {
		if _, err := informer.AddEventHandler(wake); err != nil {
			return nil, err
		}
	}
	for _, informer := range s.informers() {
		if err := informer.SetTransform(slim); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *settings) informers() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{s.config, s.mesh, s.namespaces, s.proxies}
}

// slim drops what nobody reads.
func slim(o any) (any, error) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return o, nil
}

// Run follows the objects until ctx ends.
func (s *settings) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, informer := range s.informers() {
		running.Go(func() { informer.RunWithContext(ctx) })
	}
	defer running.Wait()
	s.restore()
	if !cache.WaitForCacheSync(ctx.Done(), s.config.HasSynced, s.mesh.HasSynced, s.namespaces.HasSynced) {
		return nil
	}
	for {
		s.reload()
		select {
		case <-ctx.Done():
			return nil
		case <-s.changed:
		}
	}
}

// reload puts the configuration of the ConfigMaps in force, or says why not.
func (s *settings) reload() {
	t, err := s.read()
	if err == nil {
		err = s.putInForce(t)
	}
	if err != nil {
		s.upToDate.Set(0)
		s.rejected.Inc()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.state.Problem != err.Error() {
			s.cfg.Log.Error("injection configuration not put in force, the last good one stays", "error", err, "in_force", s.state.Origin)
		}
		s.state.Problem = err.Error()
		return
	}
	s.upToDate.Set(1)
	s.save(t)
}

// read returns the texts of the ConfigMaps as they are now.
func (s *settings) read() (t texts, err error) {
	own, err := find(s.config, s.cfg.Namespace, s.cfg.ConfigMap)
	if err != nil {
		return t, err
	}
	for _, key := range []string{"config", "values"} {
		if own.Data[key] == "" {
			return t, fmt.Errorf("ConfigMap %s/%s has no key %s; write it, or install the injector again", own.Namespace, own.Name, key)
		}
	}
	mesh, err := find(s.mesh, s.cfg.MeshNamespace, s.cfg.MeshConfigMap)
	if err != nil {
		return t, err
	}
	return texts{
		Origin: fmt.Sprintf("ConfigMap %s/%s, version %s, and ConfigMap %s/%s, version %s", own.Namespace, own.Name, own.ResourceVersion,
			mesh.Namespace, mesh.Name, mesh.ResourceVersion),
		Config: own.Data["config"], Values: own.Data["values"], Mesh: mesh.Data["mesh"],
	}, nil
}

// putInForce makes a configuration of texts, tries it, and has it decide from now on.
func (s *settings) putInForce(t texts) error {
	s.mu.Lock()
	same := s.state == state{Origin: t.Origin}
	s.mu.Unlock()
	if same {
		return nil
	}
	mesh, err := inject.ParseMesh([]byte(t.Mesh))
	if err != nil {
		return fmt.Errorf("ConfigMap %s/%s: %w", s.cfg.MeshNamespace, s.cfg.MeshConfigMap, err)
	}
	config, err := inject.ParseConfig([]byte(t.Config), []byte(t.Values), mesh, s.cfg.Revision)
	if err == nil {
		err = try(config)
	}
	if err != nil {
		return fmt.Errorf("ConfigMap %s/%s: %w", s.cfg.Namespace, s.cfg.ConfigMap, err)
	}
	s.inForce.Store(config)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = state{Origin: t.Origin}
	s.cfg.Log.Info("injection configuration in force", "from", t.Origin)
	return nil
}

func find(informer cache.SharedIndexInformer, namespace, name string) (*corev1.ConfigMap, error) {
	found, ok, err := informer.GetStore().GetByKey(namespace + "/" + name)
	if err != nil || !ok {
		return nil, errors.Join(fmt.Errorf("there is no ConfigMap %s/%s; install the control plane again, or make the ConfigMap", namespace,
			name), err)
	}
	return found.(*corev1.ConfigMap), nil
}

// try injects a Pod of no particular kind, which finds templates that cannot be rendered or are no Pod. A template may
// refuse Pods by calling fail or required; that is no mistake of its own.
func try(config *inject.Config) error {
	_, err := config.Inject(inject.Request{Pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "example", Namespace: "example",
			Labels: map[string]string{"app": "example", "sidecar.istio.io/inject": "true"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "example", Image: "example"}}},
	}, NativeSidecars: true})
	if err == nil || slices.ContainsFunc([]string{"fail", "required"},
		func(f string) bool { return strings.Contains(err.Error(), "error calling "+f+":") }) {
		return nil
	}
	return fmt.Errorf("a Pod cannot be injected by it: %w", err)
}

// current returns the configuration in force; nil before the first one.
func (s *settings) current() *inject.Config { return s.inForce.Load() }

// unlisted notes why ProxyConfigs cannot be listed or watched. An API server without the kind has none.
func (s *settings) unlisted(ctx context.Context, r *cache.Reflector, err error) {
	cache.DefaultWatchErrorHandler(ctx, r, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case apierrors.IsNotFound(err):
		s.unread = nil
	case s.unread != nil:
		s.unread = err
	}
}

// Ready says what is missing before Pods can be injected: a configuration, and the ProxyConfigs, without which a Pod
// would get other settings for as long as it lives. What was read once counts.
func (s *settings) Ready() error {
	read := s.proxies.HasSynced()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current() == nil {
		return errors.New("no configuration: " + s.state.Problem)
	}
	if s.unread != nil && !read {
		return fmt.Errorf("the ProxyConfigs of networking.istio.io are not read: %w; the injector's service account must be allowed to get, "+
			"list and watch them", s.unread)
	}
	return nil
}

func (s *settings) page(*http.Request) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state, nil
}

// namespace returns a namespace; nil if it cannot be read, which matters to templates of OpenShift alone. One that is
// not known yet is asked for if ask is true.
func (s *settings) namespace(ctx context.Context, name string, ask bool) *corev1.Namespace {
	if found, ok, err := s.namespaces.GetStore().GetByKey(name); err == nil && ok {
		return found.(*corev1.Namespace)
	}
	if !ask {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, namespaceTimeout)
	defer cancel()
	found, err := s.core.Namespaces().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		s.cfg.Log.Debug("namespace not read", "namespace", name, "error", err)
		return nil
	}
	return found
}

// proxyConfigs returns the ProxyConfigs that may be about Pods of a namespace.
func (s *settings) proxyConfigs(namespace string) []proxyconfig.Resource {
	var out []proxyconfig.Resource
	names := []string{s.current().Mesh().GetRootNamespace(), namespace}
	for _, in := range slices.Compact(names) {
		found, err := s.proxies.GetIndexer().ByIndex(cache.NamespaceIndex, in)
		if err != nil {
			continue // there is no such index, which newSettings makes
		}
		for _, o := range found {
			pc := o.(*networking.ProxyConfig)
			out = append(out, proxyconfig.Resource{Namespace: pc.Namespace, Name: pc.Name, Created: pc.CreationTimestamp.Time, Spec: &pc.Spec})
		}
	}
	return out
}

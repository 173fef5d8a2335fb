package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	mesh "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"fairlead.dev/pkg/dirlock"
	"fairlead.dev/pkg/fetch"
	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/pkg/version"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/aggregate"
	"fairlead.dev/services/config-watcher/internal/audit"
	"fairlead.dev/services/config-watcher/internal/credential"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/quota"
	"fairlead.dev/services/config-watcher/internal/revision"
	"fairlead.dev/services/config-watcher/internal/source"
	"fairlead.dev/services/config-watcher/internal/source/consul"
	"fairlead.dev/services/config-watcher/internal/source/consul/registry"
	"fairlead.dev/services/config-watcher/internal/source/declared"
	"fairlead.dev/services/config-watcher/internal/source/file"
	"fairlead.dev/services/config-watcher/internal/source/kubernetes"
	"fairlead.dev/services/config-watcher/internal/source/lastgood"
	"fairlead.dev/services/config-watcher/internal/source/mcp"
	"fairlead.dev/services/config-watcher/internal/source/memory"
	"fairlead.dev/services/config-watcher/internal/source/record"
	"fairlead.dev/services/config-watcher/internal/source/remote"
	"fairlead.dev/services/config-watcher/internal/validate/meshconfig"
)

const (
	// lockName is the file in --store-dir and --state-dir that the process locks.
	lockName = ".lock"
	// savedName is the directory in --state-dir that holds the sources' last good state.
	savedName = "sources"
	// counterName is the file in --state-dir that holds the newest revision's number.
	counterName = "revision"
)

// Names of the sources, besides memory.Name.
const (
	meshConfigSource = "mesh-config-file"
	fileSource       = "file"
)

// directories are what --store-dir and --state-dir hold, and the locks on them. saved and counter are nil without
// --state-dir.
type directories struct {
	locks   []*dirlock.Lock
	saved   *lastgood.Dir
	counter *revision.Counter
	codec   record.Codec
}

// openDirectories makes and locks --store-dir and --state-dir, and reads the keys that encrypt what is kept there.
func (s *Server) openDirectories() error {
	seen := map[string]bool{}
	for _, d := range []struct{ flag, dir string }{{"--store-dir", s.cfg.StoreDir}, {"--state-dir", s.cfg.StateDir}} {
		if d.dir == "" {
			continue
		}
		if err := os.MkdirAll(d.dir, 0o700); err != nil {
			return fmt.Errorf("%s: %w", d.flag, err)
		}
		dir, err := filepath.EvalSymlinks(d.dir)
		if err != nil {
			return fmt.Errorf("%s: %w", d.flag, err)
		}
		if dir, err = filepath.Abs(dir); err != nil {
			return fmt.Errorf("%s: %w", d.flag, err)
		}
		if seen[dir] {
			continue
		}
		seen[dir] = true
		lock, err := dirlock.Acquire(filepath.Join(dir, lockName))
		var inUse *dirlock.InUseError
		switch {
		case errors.As(err, &inUse) && inUse.PID != 0:
			return fmt.Errorf("%s: %s is in use by the config-watcher with pid %d; stop that one, or give this one a directory of its own", d.flag,
				d.dir, inUse.PID)
		case errors.As(err, &inUse):
			return fmt.Errorf("%s: %s is in use by another config-watcher; stop that one, or give this one a directory of its own", d.flag, d.dir)
		case err != nil:
			return fmt.Errorf("%s: %w", d.flag, err)
		}
		s.dirs.locks = append(s.dirs.locks, lock)
	}
	if s.cfg.StateDir != "" {
		s.dirs.saved = lastgood.New(lastgood.Config{Path: filepath.Join(s.cfg.StateDir, savedName), Log: s.Log, Clock: s.Clock})
		var err error
		if s.dirs.counter, err = revision.OpenCounter(filepath.Join(s.cfg.StateDir, counterName)); err != nil {
			return fmt.Errorf("--state-dir: %w", err)
		}
	}
	return s.readKeys()
}

func (s *Server) readKeys() error {
	if s.cfg.StoreKeyFile == "" {
		if s.cfg.StoreDir != "" || s.cfg.StateDir != "" {
			s.Log.Info("Secrets are kept on disk in the clear, readable by this user only; --store-encryption-key-file encrypts them",
				"store_dir", s.cfg.StoreDir, "state_dir", s.cfg.StateDir)
		}
		return nil
	}
	keys, err := record.ReadKeys(s.cfg.StoreKeyFile)
	if err != nil {
		return fmt.Errorf("--store-encryption-key-file: %w", err)
	}
	s.dirs.codec.Sealer = keys
	s.Log.Info("Secrets on disk are encrypted", "key", keys.Key())
	return nil
}

// unlock releases the directories.
func (d *directories) unlock() {
	for _, l := range d.locks {
		_ = l.Release()
	}
	d.locks = nil
	if d.counter != nil {
		_ = d.counter.Close()
	}
}

// unsaved says why the sources' last good state is not on disk; nil if it is, or is kept nowhere.
func (d *directories) unsaved() error {
	if d.saved == nil {
		return nil
	}
	return d.saved.Failure()
}

// sources are where objects come from. all has them in the order of their precedence.
type sources struct {
	all   []source.Source
	store *memory.Store
	// kubernetes is nil without --kubernetes, remotes also with --remote-clusters=false.
	kubernetes *kubernetes.Source
	remotes    *remote.Clusters
	// declared are those of the mesh configuration. It is the last of all: when the others have been read, it knows
	// what there is to read.
	declared *declared.Sources
	// registries is nil if nothing can declare any.
	registries *consul.Registries
}

// newSources makes the sources that flags ask for, and more. Writes into the store are admitted by quotas, and what
// remote clusters have is submitted.
func (s *Server) newSources(d deps, recorder *audit.Recorder, quotas *quota.Table, submit aggregate.Sink) (*sources, error) {
	out := &sources{}
	if s.cfg.MeshConfigFile != "" {
		out.all = append(out.all, s.files(meshConfigSource, file.MeshConfig(), s.cfg.MeshConfigFile))
	}
	out.store = memory.New(memory.Config{Dir: s.cfg.StoreDir, Codec: s.dirs.codec, Saved: s.dirs.saved, FS: d.StoreFS, Log: s.Log,
		Clock: s.Clock, Audit: recorder.Accept, Admit: func(changed []*object.Object) object.Problems {
			return quotas.Check(false, changed...) // they are in force before the next ones are asked about
		}})
	out.all = append(out.all, out.store)
	if s.cfg.Kubernetes {
		if err := s.addKubernetes(out, submit); err != nil {
			return nil, err
		}
	}
	if len(s.cfg.ConfigDirs) > 0 {
		out.all = append(out.all, s.files(fileSource, file.Decoder{}, s.cfg.ConfigDirs...))
	}
	if err := s.addRegistries(out); err != nil {
		return nil, err
	}
	out.all = append(out.all, d.Sources...)
	return out, nil
}

// addDeclared adds the sources that the mesh configuration declares. arrange ranks them.
func (s *Server) addDeclared(to *sources, identity tlsconf.Source, arrange func(names []string, kubernetes bool)) {
	root := func() string { return to.declared.Root() }
	trust := mcp.Trust{Identity: identity, Root: root}
	if to.kubernetes != nil {
		trust.Secret = s.secretOf(to.kubernetes)
	}
	to.declared = declared.New(declared.Config{Open: s.opener(trust), Arrange: arrange, Timeout: s.cfg.ConfigSourceTimeout,
		Log: s.Log, Clock: s.Clock})
	to.all = append(to.all, to.declared)
}

// secretTimeout is how long a connection waits for the Secret of its certificates.
const secretTimeout = 5 * time.Second

// secretOf reads a Secret of the control plane's namespace in an API server.
func (s *Server) secretOf(api *kubernetes.Source) func(ctx context.Context, name string) (*corev1.Secret, error) {
	return func(ctx context.Context, name string) (*corev1.Secret, error) {
		client, err := corev1client.NewForConfig(api.API())
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, secretTimeout)
		defer cancel()
		return client.Secrets(s.cfg.SystemNamespace).Get(ctx, name, metav1.GetOptions{})
	}
}

// opener opens the source of an entry of configSources.
func (s *Server) opener(trust mcp.Trust) func(*mesh.ConfigSource) (source.Source, error) {
	return func(c *mesh.ConfigSource) (source.Source, error) {
		switch meshconfig.SchemeOf(c) {
		case meshconfig.SchemeFiles:
			path := filepath.Clean(strings.TrimPrefix(c.GetAddress(), meshconfig.SchemeFiles+"://"))
			if info, err := os.Stat(path); err == nil && !info.IsDir() {
				return nil, fmt.Errorf("%s is no directory", path)
			}
			// The name is also that of a directory in --state-dir, which may be in no other source's.
			return s.files("fs/"+strings.ReplaceAll(strings.Trim(path, "/"), "/", "_"), file.Decoder{}, path), nil
		case meshconfig.SchemeXDS:
			host := mcp.HostOf(c)
			if err := mcp.CheckSecret(c.GetTlsSettings(), trust); err != nil {
				return nil, err
			}
			return mcp.New(mcp.Config{
				Host: host, Dial: mcp.Dialer(host, c.GetTlsSettings(), trust),
				Node:     mcp.Node{Name: contract.ConfigWatcherAccount, Namespace: s.cfg.SystemNamespace, Domain: s.cfg.DomainSuffix},
				Revision: s.cfg.IstioRevision, Saved: s.dirs.saved, Codec: s.dirs.codec, Log: s.Log, Clock: s.Clock,
				Namespaces: s.cfg.sourceNamespaces[host],
				Registry:   slices.Contains(c.GetSubscribedResources(), mesh.Resource_SERVICE_REGISTRY),
			}), nil
		}
		return nil, fmt.Errorf("scheme %q is not read", meshconfig.SchemeOf(c))
	}
}

// arrange ranks declared sources behind the others, and withholds Istio's objects of the API server if the mesh
// configuration has sources and this is none of them, as in Istio.
func (s *Server) arrange(joined *aggregate.Aggregate, from *sources, names []string, kubernetes bool) {
	withheld := ""
	if from.kubernetes != nil && !kubernetes {
		withheld = from.kubernetes.Name()
	}
	joined.Arrange(names, withheld)
	if objects, name := joined.Withheld(); name != "" {
		s.Log.Warn("objects of Istio's kinds in the API server do not count, because meshConfig.configSources lacks k8s://", "source", name,
			"objects", objects)
	}
}

// each are all sources, and those that some of them consist of.
func (from *sources) each() []source.Source { return slices.Concat(from.all, from.parts()) }

// clientGoLog sends what client-go logs apart from a call's context to the first log of the process.
var clientGoLog sync.Once

// connectKubernetes reads the settings of the connection to the API server, which a flag asks for.
func (s *Server) connectKubernetes(flag string) (*rest.Config, error) {
	clientGoLog.Do(func() { klog.SetSlogLogger(s.Log.With("component", "client-go")) })
	api, err := kubernetes.Connect(kubernetes.Connection{
		Kubeconfig: s.cfg.Kubeconfig, Context: s.cfg.KubeContext, QPS: s.cfg.KubeAPIQPS, Burst: s.cfg.KubeAPIBurst,
		UserAgent: "fairlead-config-watcher/" + version.Version,
	})
	if err != nil {
		return nil, process.WithExitCode(fmt.Errorf("--%s: %w", flag, err), process.ExitUsage)
	}
	return api, nil
}

// addKubernetes adds the API server of --kubernetes and the clusters that its Secrets name.
func (s *Server) addKubernetes(to *sources, submit aggregate.Sink) error {
	api, err := s.connectKubernetes("kubernetes")
	if err != nil {
		return err
	}
	to.kubernetes, err = kubernetes.New(kubernetes.Config{
		Cluster: s.cfg.ClusterID, API: api, MultiCluster: s.cfg.MCS.reads(), Revision: s.cfg.IstioRevision, Saved: s.dirs.saved,
		Codec: s.dirs.codec, Log: s.Log, Clock: s.Clock,
		OtherData: func() {
			if to.remotes != nil {
				to.remotes.Relist()
			}
			if to.registries != nil {
				to.registries.Relist()
			}
		},
	})
	if err != nil {
		return process.WithExitCode(fmt.Errorf("--kubernetes: %w", err), process.ExitUsage)
	}
	to.all = append(to.all, to.kubernetes)
	if !s.cfg.RemoteClusters {
		return nil
	}
	secrets, err := secretsOf(api)
	if err != nil {
		return err
	}
	to.remotes = remote.New(remote.Config{
		Own: s.cfg.ClusterID, Secrets: secrets, Namespace: kinds.MeshNamespace, Allow: s.cfg.remoteAllow,
		Timeout: s.cfg.RemoteClusterTimeout, StaleAfter: s.cfg.RemoteClusterStaleAfter, MultiCluster: s.cfg.MCS.reads(),
		QPS: s.cfg.KubeAPIQPS, Burst: s.cfg.KubeAPIBurst, UserAgent: api.UserAgent,
		Submit: submit, Saved: s.dirs.saved, Codec: s.dirs.codec, Log: s.Log, Clock: s.Clock,
	})
	to.all = append(to.all, to.remotes)
	return nil
}

// secretsOf makes a client of its own for the Secrets of istio-system, so that they do not wait for the objects of the
// own cluster.
func secretsOf(api *rest.Config) (corev1client.SecretInterface, error) {
	own := rest.CopyConfig(api)
	own.RateLimiter = nil
	client, err := corev1client.NewForConfig(own)
	if err != nil {
		return nil, process.WithExitCode(fmt.Errorf("--kubernetes: %w", err), process.ExitUsage)
	}
	return client.Secrets(kinds.MeshNamespace), nil
}

// addRegistries adds the registries that Secrets and files declare.
func (s *Server) addRegistries(to *sources) error {
	cfg := consul.Config{
		Namespace: kinds.MeshNamespace, Dir: s.cfg.RegistryDir, Grace: s.cfg.FileGrace, Addresses: fetch.Addresses{Allow: s.cfg.registryAllow},
		Domain: s.cfg.DomainSuffix, System: s.cfg.SystemNamespace, Timeout: s.cfg.RegistryTimeout, Follow: consul.Follow, Saved: s.dirs.saved,
		Codec: s.dirs.codec, Log: s.Log, Clock: s.Clock,
	}
	if to.kubernetes != nil && s.cfg.Registries {
		var err error
		if cfg.Secrets, err = secretsOf(to.kubernetes.API()); err != nil {
			return err
		}
	}
	if cfg.Secrets == nil && cfg.Dir == "" {
		return nil
	}
	to.registries = consul.New(cfg)
	to.all = append(to.all, to.registries)
	return nil
}

// parts are the sources that others of all consist of: remote clusters, registries, and what the mesh configuration
// declares.
func (from *sources) parts() (out []source.Source) {
	if from.remotes != nil {
		out = from.remotes.Sources()
	}
	if from.registries != nil {
		out = append(out, from.registries.Sources()...)
	}
	return append(out, from.declared.Sources()...)
}

func (s *Server) files(name string, decode file.Decoder, paths ...string) *file.Source {
	return file.New(file.Config{
		Name: name, Paths: paths, Resync: s.cfg.ResyncPeriod, Grace: s.cfg.FileGrace, Decode: decode, Saved: s.dirs.saved, Codec: s.dirs.codec,
		Log:   s.Log,
		Clock: s.Clock,
	})
}

// lookup is the source that reads credentials one by one; nil if there is none.
func (from *sources) lookup() credential.Lookup {
	if from.kubernetes == nil {
		return nil
	}
	return from.kubernetes
}

// settled reports whether the first revision may be made: each source has been read, or is served from its last good
// state. A revision without the objects of a source that was not read would remove their routes and their policies.
func (from *sources) settled() bool {
	return lists.All(from.all, func(src source.Source) bool { return src.Status().Settled() })
}

// ready is a readiness check: it fails until there is a revision, and names the sources that it waits for. The service
// stays ready when a source degrades later, because all others still work. The text is public: it names flags, never
// paths.
func (from *sources) ready(revisions *revision.Log) error {
	if snapshot, _ := revisions.Current(); snapshot != nil {
		return nil
	}
	var waiting []string
	for _, src := range from.all {
		switch st := src.Status(); {
		case st.Settled():
		case st.Degraded == nil:
			waiting = append(waiting, src.Name()+" is being read")
		default:
			waiting = append(waiting, fmt.Sprintf(
				"%s cannot be read and never was with this --state-dir: %s; the log and /debug/sources name the path", src.Name(), remedy(src)))
		}
	}
	if len(waiting) == 0 {
		return errors.New("the first revision is being built")
	}
	return fmt.Errorf("not synced yet: %s", strings.Join(waiting, "; "))
}

// remedy says what to do about a source that cannot be read.
func remedy(src source.Source) string {
	if strings.HasPrefix(src.Name(), kubernetes.NamePrefix) {
		return "make the API server reachable and let config-watcher's service account read it"
	}
	if strings.HasPrefix(src.Name(), registry.SourcePrefix) {
		return "make Consul readable at the registry's address, by its CA, certificate and token; its declaration has them"
	}
	switch src.Name() {
	case declared.Name:
		return "make the servers and directories of meshConfig.configSources reachable, or remove them from it; " +
			"--config-source-timeout ends the wait"
	case remote.Name:
		return "let config-watcher's service account get, list and watch Secrets of namespace " + kinds.MeshNamespace +
			", or give --remote-clusters=false"
	case consul.Name:
		return "make the registries reachable, or give less time with --registry-timeout; let config-watcher's service account get, list and " +
			"watch Secrets of namespace " + kinds.MeshNamespace + ", or give --registries=false; make --registry-dir readable"
	case meshConfigSource:
		return "make the file of --mesh-config-file readable, or remove the flag"
	case memory.Name:
		return "make --store-dir readable, or bring it back"
	default:
		return "make every --config-dir exist and be readable, or remove the flag"
	}
}

// Package gateways is the process fairlead-gateways: it makes what Gateways of Kubernetes' Gateway API need, a service
// account, a Deployment and a Service, and if asked an autoscaler and a budget, from the chart gateway (package
// objects) by the rules of pkg/gatewaydeploy. Open wires the process; of several replicas the one with the lease runs a
// controller, which watches (watch.go), takes Gateways from a queue in which namespaces take turns, compares each with
// its objects (reconcile.go), and writes what differs (apply.go).
package gateways

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/filewatch"
	"fairlead.dev/pkg/lease"
	"fairlead.dev/pkg/ops"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/version"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/gateways/objects"
)

const (
	// manager is the field manager of what is written, and the name of the lease.
	manager = "fairlead-gateways"
	// callTimeout bounds a call of the API server that is no watch.
	callTimeout = 20 * time.Second
	// maxValues bounds the file with values, in bytes.
	maxValues = 1 << 20
	// readValues is how often the file is read even if nobody says that it has changed.
	readValues = time.Minute
)

// Process is fairlead-gateways.
type Process struct {
	*service.Process
	options *Options
	metrics *metrics
	// client, objects and metadata share one bound on requests.
	client   *kubernetes.Clientset
	objects  *dynamic.DynamicClient
	metadata metadata.Interface

	mu      sync.Mutex
	builder *objects.Builder
	// text is what the builder is made of.
	text string
	// term is the controller while this replica leads; nil otherwise.
	term *controller
}

// Open wires everything and binds the ports. Run must follow.
func Open(ctx context.Context, o *Options, deps service.Deps) (_ *Process, err error) {
	domain, err := o.check()
	if err != nil {
		return nil, process.WithExitCode(err, process.ExitUsage)
	}
	admin, err := spiffeid.FromPathf(domain, "/ns/%s/sa/%s", contract.SystemNamespace, contract.AdminAccount)
	if err != nil {
		return nil, err
	}
	api, err := connect(o)
	if err != nil {
		return nil, process.WithExitCode(fmt.Errorf("--kubeconfig: %w", err), process.ExitUsage)
	}
	p := &Process{Process: service.New(o.Options, deps), options: o, metrics: newMetrics(deps.Registry)}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	klog.SetSlogLogger(p.Log.With("component", "client-go"))
	if err := p.load(); err != nil {
		return nil, process.WithExitCode(fmt.Errorf("--values-file: %w", err), process.ExitUsage)
	}
	p.Task("values", func(ctx context.Context) error {
		filewatch.Follower{
			Files: func() []string { return []string{o.ValuesFile} },
			Read:  p.reload,
			Clock: clock.Or(p.Clock),
			Log:   p.Log,
		}.Run(
			ctx,
		)
		return nil
	})
	var errs [3]error
	p.client, errs[0] = kubernetes.NewForConfig(api)
	p.objects, errs[1] = dynamic.NewForConfig(api)
	p.metadata, errs[2] = metadata.NewForConfig(api)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	if err := p.ServeOps(ctx, service.Admin{ID: admin, Audience: contract.AdminAudience}); err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		host = manager
	}
	election, err := lease.New(lease.Config{
		API: api, Namespace: o.Namespace, Name: o.leaseName(), Identity: host + "_" + uuid.NewString(), Duration: o.LeaseDuration,
		Work: p.lead, Account: "the service account of fairlead-gateways", Unread: errors.New("the lease was not read yet"),
		Leads: p.metrics.leader, Log: p.Log,
	})
	if err != nil {
		return nil, err
	}
	p.Ops.Ready("lease", election.Failure)
	p.Ops.Debug("/debug/gateways", "the Gateways that this replica deploys, with what became of the last look at each",
		ops.JSON(func(*http.Request) (any, error) { return p.page(), nil }))
	p.Task("gateways", election.Run)
	return p, nil
}

// connect reads the settings of the connection to the API server.
func connect(o *Options) (*rest.Config, error) {
	var config *rest.Config
	var err error
	if o.Kubeconfig == "" {
		config, err = rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) || errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%w; name a kubeconfig outside of a Pod", err)
		}
	} else {
		config, err = clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	}
	if err != nil {
		return nil, err
	}
	config.UserAgent = manager + "/" + version.Version
	// One bound for all clients of this configuration.
	config.QPS, config.Burst = o.QPS, max(1, int(2*o.QPS))
	config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(config.QPS, config.Burst)
	return config, nil
}

// load makes the builder of the file with values.
func (p *Process) load() error {
	text, err := fileio.Read(p.options.ValuesFile, maxValues)
	if err != nil {
		return err
	}
	p.mu.Lock()
	same := p.builder != nil && string(text) == p.text
	p.mu.Unlock()
	if same {
		return nil
	}
	b, err := objects.NewBuilder(text, p.options.Revision)
	if err == nil {
		err = b.Try()
	}
	if err != nil {
		return fmt.Errorf("%s: %w; write global and meshConfig as the chart gateway takes them", p.options.ValuesFile, err)
	}
	p.mu.Lock()
	p.text, p.builder = string(text), b
	term := p.term
	p.mu.Unlock()
	if term != nil {
		p.Log.Info("the installation's values have changed, Gateways are compared with them")
		term.all()
	}
	return nil
}

// reload loads the file again. One that cannot be used changes nothing.
func (p *Process) reload() time.Duration {
	stale := 0.0
	if err := p.load(); err != nil {
		stale = 1
		p.Log.Error("the installation's values cannot be used, the last good ones stay in force", "error", err)
	}
	p.metrics.valuesFail.Set(stale)
	return readValues
}

func (p *Process) lead(ctx context.Context) {
	p.Log.Info("this replica makes what Gateways need", "revision", p.options.revisionName())
	c, err := newController(p)
	if err != nil {
		p.Log.Error("Gateways cannot be watched", "error", err)
		<-ctx.Done()
		return
	}
	p.mu.Lock()
	p.term = c
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.term = nil
		p.mu.Unlock()
	}()
	c.run(ctx)
}

// current is the builder of the values in force.
func (p *Process) current() *objects.Builder {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.builder
}

// page is /debug/gateways.
func (p *Process) page() any {
	p.mu.Lock()
	term := p.term
	p.mu.Unlock()
	if term == nil {
		return map[string]any{"leader": false}
	}
	return map[string]any{"leader": true, "gateways": term.page()}
}

package decisions

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/adstest"
	"fairlead.dev/pkg/testkit/emptykube"
	"fairlead.dev/tests/internal/policygen"
	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/internal/process"
)

// listenerType is that of LDS.
const listenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"

// startWithin bounds the start of a control plane, answerWithin its answer to a proxy.
const (
	startWithin  = time.Minute
	answerWithin = 30 * time.Second
)

// istiod is Istio's own control plane, without Kubernetes: it reads files, and a Kubernetes API server without objects.
type istiod struct{ conn *grpc.ClientConn }

// startIstiod runs the pilot-discovery of a directory with a mesh and waits until it has read all of it.
func startIstiod(t *testing.T, bin string, m Mesh) *istiod {
	t.Helper()
	dir := t.TempDir()
	objects := filepath.Join(dir, "objects")
	testkit.NoError(t, os.Mkdir(objects, 0o700))
	files, wanted := m.Services(), 0
	for _, s := range m.Sets {
		text, err := s.YAML()
		testkit.NoError(t, err)
		files[s.Namespace+"-policies"] = text
		wanted += len(s.Objects)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		testkit.WriteFile(t, filepath.Join(objects, name+".yaml"), []byte(files[name]))
	}
	kube := emptykube.Start()
	t.Cleanup(kube.Close)
	kubeconfig, mesh := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "mesh.yaml")
	testkit.WriteFile(t, kubeconfig, kube.Kubeconfig())
	testkit.WriteFile(t, mesh, []byte(m.Config()+fmt.Sprintf("configSources: [{address: \"fs://%s\"}, {address: \"k8s://\"}]\n", objects)))
	at, serve, other := testkit.FreeAddress(t).String(), testkit.FreeAddress(t).String(), testkit.FreeAddress(t).String()
	p := process.Run(t, process.Program{
		Name: "istiod", Path: filepath.Join(bin, "pilot-discovery"),
		Args: []string{
			"discovery", "--registries=", "--kubeconfig", kubeconfig, "--meshConfig", mesh, "--httpAddr", serve, "--grpcAddr", at,
			"--secureGRPCAddr", "", "--monitoringAddr", other, "--httpsAddr", "", "--ctrlz_port", "0", "--log_output_level", "default:error",
		},
		Env: []string{
			"POD_NAMESPACE=" + policygen.RootNamespace, "POD_NAME=istiod", "KUBE_FEATURE_WatchListClient=false", "ENABLE_CA_SERVER=false",
			"VALIDATION_WEBHOOK_CONFIG_NAME=", "INJECTION_WEBHOOK_CONFIG_NAME=", "PILOT_MAX_REQUESTS_PER_SECOND=10000",
			"PILOT_ENABLE_MULTIPLE_CUSTOM_AUTHZ_PROVIDERS=true",
		},
		Change: func(cmd *exec.Cmd) error { cmd.Dir = dir; return nil },
	})
	client := probe.Client(nil)
	testkit.NoError(t, p.Until(t.Context(), startWithin, func() error {
		if err := probe.Ready(t.Context(), client, "http://"+serve+"/ready"); err != nil {
			return err
		}
		return hasPolicies(t.Context(), "http://"+serve+"/debug/configz", wanted)
	}))
	conn, err := grpc.NewClient(at, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<28)))
	testkit.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return &istiod{conn}
}

// hasPolicies tells whether istiod has taken all policies: it leaves out the whole file of an object that it refuses.
func hasPolicies(ctx context.Context, url string, wanted int) error {
	raw, err := probe.Get(ctx, probe.Client(nil), url)
	if err != nil {
		return err
	}
	var objects []struct{ Kind string }
	if err := json.Unmarshal(raw, &objects); err != nil {
		return err
	}
	found := 0
	for _, o := range objects {
		if o.Kind == policygen.AuthorizationPolicy || o.Kind == policygen.RequestAuthentication {
			found++
		}
	}
	if found != wanted {
		return fmt.Errorf("istiod has %d policies of %d", found, wanted)
	}
	return nil
}

// node is what the proxy of a set's workload says of itself.
func node(s policygen.Set) *core.Node {
	labels := map[string]any{}
	for k, v := range s.Labels {
		labels[k] = v
	}
	id := adstest.Sidecar(s.Address.String(), "app", s.Namespace)
	if s.Gateway {
		id = "router" + id[len("sidecar"):]
	}
	n := adstest.Node(id, map[string]any{
		"NAME": "app", "NAMESPACE": s.Namespace, "SERVICE_ACCOUNT": "default", "INSTANCE_IPS": s.Address.String(), "ISTIO_VERSION": "1.31.1",
		"CLUSTER_ID": "Kubernetes", "INTERCEPTION_MODE": "REDIRECT", "LABELS": labels,
	})
	return n
}

// filters asks for the listeners of a set's workload, and takes the filters of policies out of them.
func (i *istiod) filters(ctx context.Context, s policygen.Set) (Filters, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	stream, err := adstest.OpenSotw(ctx, i.conn, node(s))
	if err != nil {
		return Filters{}, err
	}
	if err := stream.Send(&discovery.DiscoveryRequest{TypeUrl: listenerType}); err != nil {
		return Filters{}, stream.Drain()
	}
	response, err := stream.Recv()
	if err != nil {
		return Filters{}, fmt.Errorf("istiod: %w", err)
	}
	return inListeners(s, response.GetResources())
}

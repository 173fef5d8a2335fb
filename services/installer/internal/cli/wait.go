package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"fairlead.dev/pkg/nearest"
	configv1 "fairlead.dev/proto/fairlead/config/v1"

	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/kube"
)

// What `fairlead wait` waits for.
const (
	forProgrammed = "programmed"
	forDelivery   = "delivery"
	forDeleted    = "deleted"
)

// conditionNames are the values of --for, in istioctl's spelling and as kubectl's condition too.
var conditionNames = map[string]string{
	forProgrammed: forProgrammed, "condition=programmed": forProgrammed, forDelivery: forDelivery, "distribution": forDelivery,
	forDeleted: forDeleted, "delete": forDeleted,
}

// statusGroups are the API groups of the kinds whose objects have conditions.
var statusGroups = map[string][]string{
	"networking.istio.io": {"VirtualService", "DestinationRule", "Gateway", "ServiceEntry", "Sidecar", "WorkloadEntry", "WorkloadGroup",
		"EnvoyFilter", "ProxyConfig"},
	"security.istio.io":  {"PeerAuthentication", "RequestAuthentication", "AuthorizationPolicy"},
	"telemetry.istio.io": {"Telemetry"}, "extensions.istio.io": {"WasmPlugin"},
}

// waitFlags are the flags of `fairlead wait`.
type waitFlags struct {
	namespace, condition string
	generation           int64
	threshold            float64
	timeout              time.Duration
	verbose              bool
	out                  *format
}

// waitResult is what `wait` prints with -o json or yaml.
type waitResult struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// For is what was waited for: programmed, delivery or deleted.
	For  string `json:"for"`
	Done bool   `json:"done"`
	// Message says how it ended, or what is missing.
	Message string  `json:"message"`
	Seconds float64 `json:"seconds"`
}

func newWait(t *target) *cobra.Command {
	f := waitFlags{out: newFormat("json", "yaml")}
	cmd := &cobra.Command{
		Use:   "wait KIND/NAME[.NAMESPACE] | KIND NAME[.NAMESPACE]",
		Short: "Wait until the proxies have acknowledged an object",
		Long: `Wait until the proxies have acknowledged an object of Istio's kinds in its newest generation, or in that of --generation.

  --for programmed   its condition Programmed holds: every proxy has acknowledged it. A proxy that rejects it ends the wait
  --for delivery     the share --threshold of the connected proxies has acknowledged it; istioctl calls it distribution
  --for deleted      it is not in force any more, and the share --threshold of the proxies has acknowledged that

Objects of files have no generation; the version in force counts. Proxies whose identity the mesh does not know do not count.

Exit code 0 when it has come true; 1 after --timeout, with the proxies that are missing, or if the object is refused, overridden or rejected.`,
		Example: `  fairlead wait virtualservice/reviews.default
  fairlead wait vs/reviews -n default --for delivery --threshold 0.9
  fairlead wait dr/reviews --for deleted --timeout 1m -v`,
		Args:              args(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: t.completeObjects,
		RunE: func(cmd *cobra.Command, a []string) error {
			return waitFor(cmd.Context(), t, a, f, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	t.namespaceFlag(cmd, &f.namespace, "namespace of the object, if NAME does not say (default \"default\")")
	fs.StringVar(&f.condition, "for", forProgrammed, "what to wait for: programmed, delivery or deleted")
	fs.Int64Var(&f.generation, "generation", 0, "generation of the object (default: the newest)")
	fs.Float64Var(&f.threshold, "threshold", 1, "share of the proxies that is enough, 0 to 1; for programmed it is all of them")
	fs.DurationVar(&f.timeout, "timeout", 30*time.Second, "how long to wait")
	fs.BoolVarP(&f.verbose, "verbose", "v", false, "say on standard error how far it is")
	outputFlag(cmd, f.out)
	t.register(fs)
	t.registerCluster(cmd)
	completeFlag(cmd, "for", forProgrammed, forDelivery, forDeleted)
	return cmd
}

// waited is an object that a command waits for.
type waited struct {
	key        *configv1.ObjectKey
	generation int64
	threshold  float64
	condition  string
	// targets are the revisions by which the object has become what is waited for, by replica; nil before the first
	// look.
	targets  map[string]*configv1.Revision
	watchers []watcher
}

func (w *waited) String() string {
	return w.key.GetKind() + " " + fullName(w.key.GetNamespace(), w.key.GetName())
}

func waitFor(ctx context.Context, t *target, a []string, f waitFlags, out, diagnostics io.Writer) error {
	kind, name, err := objectNamed(a)
	if err != nil {
		return err
	}
	condition, ok := conditionNames[strings.ToLower(f.condition)]
	switch {
	case name == "":
		return usage(fmt.Errorf("%q names no object: write KIND/NAME or KIND/NAME.NAMESPACE", strings.Join(a, " ")))
	case !ok:
		all := []string{forProgrammed, forDelivery, forDeleted}
		return usage(fmt.Errorf("--for %q is none of %s%s", f.condition, strings.Join(all, ", "), nearest.Hint(f.condition, all)))
	case groupOf(kind) == "":
		return usage(fmt.Errorf("%s has no conditions, which only objects of Istio's kinds have; `fairlead proxy-status` shows what proxies "+
			"have acknowledged", kind))
	case f.threshold < 0 || f.threshold > 1:
		return usage(fmt.Errorf("--threshold %g is no share; write 0 to 1, as 0.9", f.threshold))
	case f.threshold != 1 && condition == forProgrammed:
		return usage(errors.New("--threshold is for --for delivery and deleted: programmed means all proxies"))
	case f.generation < 0 || f.generation > 0 && condition == forDeleted:
		return usage(fmt.Errorf("--generation %d: write a generation of the object, with --for programmed or delivery", f.generation))
	case f.timeout <= 0:
		return usage(fmt.Errorf("--timeout %s: write how long to wait, as 30s", f.timeout))
	}
	key := objectKey(kind, f.namespace, name)
	if i := strings.LastIndexByte(name, '.'); i > 0 && f.namespace == "" {
		key = objectKey(kind, name[i+1:], name[:i])
	}
	w := &waited{key: key, generation: f.generation, threshold: f.threshold, condition: condition}
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	began := time.Now()
	if w.generation == 0 && condition != forDeleted {
		if w.generation, err = t.newestGeneration(ctx, key); err != nil {
			return err
		}
	}
	defer func() { closeAll(w.watchers) }()
	said, absent := "", false
	for {
		step, err := w.look(ctx, t)
		if err == nil {
			absent = step.absent
		}
		if step.done {
			return f.tell(out, w, true, step.text, time.Since(began))
		}
		if step.final {
			return errors.Join(f.tellFailure(out, w, err, time.Since(began)), err)
		}
		if err != nil {
			w.forget(t)
			step.text = err.Error()
		}
		if ctx.Err() == nil && step.text != said && f.verbose {
			said = step.text
			fmt.Fprintf(diagnostics, "%5.1fs  %s\n", time.Since(began).Seconds(), said)
		}
		select {
		case <-ctx.Done():
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return ctx.Err()
			}
			why := ""
			if absent {
				why = t.unknown(context.WithoutCancel(ctx), key)
			}
			if why == "" {
				why = lastWord(said, step.text) + "; `fairlead proxy-status` says what proxies wait for, and --timeout sets another time"
			}
			late := fmt.Errorf("%s: not %s within %s: %s", w, condition, f.timeout, why)
			return errors.Join(f.tellFailure(out, w, late, time.Since(began)), late)
		case <-time.After(4 * pollInterval):
		}
	}
}

// tell prints how a wait has ended.
func (f waitFlags) tell(out io.Writer, w *waited, done bool, text string, took time.Duration) error {
	if f.out.value == "" {
		_, err := fmt.Fprintf(out, "%s: %s after %.1fs\n", w, text, took.Seconds())
		return err
	}
	return printTree(out, f.out.value, waitResult{
		Kind: w.key.GetKind(), Namespace: w.key.GetNamespace(), Name: w.key.GetName(), For: w.condition, Done: done, Message: text,
		Seconds: float64(took.Milliseconds()) / 1000,
	})
}

// tellFailure is tell for an error, which is printed by itself without -o.
func (f waitFlags) tellFailure(out io.Writer, w *waited, err error, took time.Duration) error {
	if f.out.value == "" {
		return nil
	}
	return f.tell(out, w, false, err.Error(), took)
}

// lastWord is what was said last before a deadline, whose own error says nothing.
func lastWord(said, text string) string {
	if said != "" && (text == "" || strings.Contains(text, "deadline")) {
		return said
	}
	return text
}

// groupOf is the API group of a kind whose objects have conditions; "" for others.
func groupOf(kind string) string {
	for group, kinds := range statusGroups {
		if slices.Contains(kinds, kind) {
			return group
		}
	}
	return ""
}

// newestGeneration is the generation of the object where it is written: in the API server of a cluster, because a
// config-watcher may not have read it yet, else in config-watcher's store. It is 0 for an object of a file, or none.
func (t *target) newestGeneration(ctx context.Context, key *configv1.ObjectKey) (int64, error) {
	mesh, err := t.controlPlane(ctx)
	if err != nil {
		return 0, err
	}
	if mesh != nil {
		if generation, err := t.writtenGeneration(ctx, key); err != nil || generation > 0 {
			return generation, err
		}
	}
	generation := int64(0)
	err = t.call(ctx, func(ctx context.Context, client *configapi.Client) error {
		res, err := client.Get(ctx, &configv1.GetRequest{Key: key, InForce: true})
		if gone := new(configapi.NotFoundError); errors.As(client.Explain(err), &gone) {
			return nil
		}
		generation = res.GetObject().GetGeneration()
		return err
	})
	return generation, err
}

// writtenGeneration is the generation of the object in the API server; 0 if that has none.
func (t *target) writtenGeneration(ctx context.Context, key *configv1.ObjectKey) (int64, error) {
	config, err := t.cluster.Rest()
	if err != nil {
		return 0, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return 0, err
	}
	api, err := kube.NewAPI(config)
	if err != nil {
		return 0, err
	}
	groups, err := api.Discovery().ServerGroups()
	if err != nil {
		return 0, kube.Explain(err)
	}
	resource := schema.GroupVersionResource{Group: groupOf(key.GetKind()), Resource: plural(strings.ToLower(key.GetKind()))}
	for _, g := range groups.Groups {
		if g.Name == resource.Group {
			resource.Version = g.PreferredVersion.Version
		}
	}
	if resource.Version == "" {
		return 0, nil // the objects are not in the cluster, but in files or in the store
	}
	o, err := client.Resource(resource).Namespace(key.GetNamespace()).Get(ctx, key.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, kube.Explain(err)
	}
	return o.GetGeneration(), nil
}

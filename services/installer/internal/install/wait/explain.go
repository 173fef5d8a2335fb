package wait

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"fairlead.dev/services/installer/internal/install/cluster"
)

// maxText bounds a message of the cluster in an error, in characters.
const maxText = 300

// remedies by the reason of a Pod's state.
var remedies = map[string]string{
	"Unschedulable":              "make room on a node, or change the component's resources, nodeSelector, affinity or tolerations",
	"ImagePullBackOff":           "check hub, tag and imagePullSecrets, and that the nodes reach the registry",
	"ErrImagePull":               "check hub, tag and imagePullSecrets, and that the nodes reach the registry",
	"ErrImageNeverPull":          "load the image on the nodes, or change imagePullPolicy",
	"InvalidImageName":           "check hub and tag",
	"CrashLoopBackOff":           "its log says why it ends",
	"CreateContainerConfigError": "make the ConfigMap or Secret that the message names",
	"CreateContainerError":       "the message says what the node's runtime refuses",
	"OOMKilled":                  "raise the component's k8s.resources.limits.memory",
	"ContainerCreating":          "see the events of the Pod: kubectl describe",
	"Unready":                    "its readiness probe fails: see its log",
	"FailedCreate":               "the message says who refuses its Pods: a quota, Pod Security, a webhook or a missing service account",
}

// Explain says why an object is not ready, in one line: the object, a Pod, the reason, the last line of the log, and
// the remedy.
func Explain(ctx context.Context, c *cluster.Client, id cluster.ID) string {
	u, err := c.Get(ctx, id)
	if err != nil {
		return err.Error()
	}
	if u == nil {
		return id.String() + " is not ready: it is not there; run the installation again"
	}
	head := id.String() + " is not ready: " + Of(u).Reason
	if id.IsCRD() {
		return head
	}
	pods, err := Pods(ctx, c, u)
	if err != nil {
		return head + "; its Pods cannot be read: " + err.Error()
	}
	if trouble, ok := worst(pods); ok {
		return head + "; " + trouble.text(ctx, c)
	}
	if len(pods) > 0 {
		return head
	}
	if f := condition(u, "ReplicaFailure"); f.status == "True" {
		return fmt.Sprintf("%s; it has no Pod: %s: %s", head, short(f.text()), remedies["FailedCreate"])
	}
	return head + "; it has no Pod: see kubectl describe " + id.Command()
}

// causeOf says what keeps a Pod of a workload from being ready, with "; " before it; empty if nothing is known.
func causeOf(ctx context.Context, c *cluster.Client, id cluster.ID) string {
	u, err := c.Get(ctx, id)
	if err != nil || u == nil || id.IsCRD() {
		return ""
	}
	pods, err := Pods(ctx, c, u)
	if err != nil {
		return ""
	}
	trouble, ok := worst(pods)
	if !ok || trouble.reason == "ContainerCreating" || trouble.reason == "Unready" {
		return "" // as every Pod begins
	}
	return "; " + trouble.text(ctx, c)
}

// Pods returns the Pods that a workload selects.
func Pods(ctx context.Context, c *cluster.Client, u *unstructured.Unstructured) ([]unstructured.Unstructured, error) {
	match, _, _ := unstructured.NestedStringMap(u.Object, "spec", "selector", "matchLabels")
	if len(match) == 0 {
		return nil, nil
	}
	return c.List(ctx, cluster.ID{Version: "v1", Kind: "Pod", Namespace: u.GetNamespace()},
		metav1.ListOptions{LabelSelector: labels.SelectorFromSet(match).String()})
}

// trouble is what keeps a Pod from being ready.
type trouble struct {
	pod                        *unstructured.Unstructured
	rank                       int
	container, reason, message string
	logs                       bool
}

func (t trouble) text(ctx context.Context, c *cluster.Client) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Pod %s/%s", t.pod.GetNamespace(), t.pod.GetName())
	if t.container != "" {
		b.WriteString(", container " + t.container)
	}
	b.WriteString(": " + t.what())
	if t.logs {
		if line := c.LastLog(ctx, t.pod.GetNamespace(), t.pod.GetName(), t.container); line != "" {
			fmt.Fprintf(&b, "; it logged last: %q", short(line))
		}
	}
	if remedy := remedies[t.reason]; remedy != "" {
		b.WriteString("; " + remedy)
	}
	return b.String()
}

// what is the reason, with the cluster's message.
func (t trouble) what() string {
	if t.message == "" {
		return t.reason
	}
	return t.reason + ": " + short(t.message)
}

// Trouble says what keeps a Pod from being ready: the container, if it is one, and the reason; "" if it is ready.
func Trouble(pod *corev1.Pod) string {
	tree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	u := &unstructured.Unstructured{Object: tree}
	if err != nil || condition(u, "Ready").status == "True" {
		return ""
	}
	t := look(u)
	if t.container == "" {
		return t.what()
	}
	return "container " + t.container + ": " + t.what()
}

func short(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > maxText {
		return string(runes[:maxText-1]) + "…"
	}
	return text
}

// worst returns the trouble of the Pod that is furthest from being ready, the first by name; false if all are ready.
func worst(pods []unstructured.Unstructured) (trouble, bool) {
	var all []trouble
	for i := range pods {
		if pods[i].GetDeletionTimestamp() == nil && condition(&pods[i], "Ready").status != "True" {
			all = append(all, look(&pods[i]))
		}
	}
	if len(all) == 0 {
		return trouble{}, false
	}
	return slices.MinFunc(all, func(a, b trouble) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.pod.GetName(), b.pod.GetName()))
	}), true
}

// look finds what keeps one Pod from being ready: a container that waits with an error, one that has ended, a Pod that
// is on no node, a container whose probe fails, and else the Pod's phase.
func look(pod *unstructured.Unstructured) trouble {
	var unready, creating *trouble
	for _, list := range []string{"initContainerStatuses", "containerStatuses"} {
		items, _, _ := unstructured.NestedSlice(pod.Object, "status", list)
		for _, item := range items {
			s, ok := item.(map[string]any)
			if !ok {
				continue
			}
			t := trouble{pod: pod, container: text(s["name"])}
			if waiting, ok, _ := unstructured.NestedMap(s, "state", "waiting"); ok {
				t.reason, t.message = text(waiting["reason"]), text(waiting["message"])
				if t.reason == "" || t.reason == "ContainerCreating" || t.reason == "PodInitializing" {
					t.rank, t.reason = 4, "ContainerCreating"
					creating = &t
					continue
				}
				if t.reason == "CrashLoopBackOff" {
					t.logs, t.message = true, crash(s, t.message)
				}
				return t
			}
			if ended, ok, _ := unstructured.NestedMap(s, "state", "terminated"); ok &&
				(list == "containerStatuses" || ended["exitCode"] != int64(0)) {
				t.rank, t.reason, t.logs = 1, text(ended["reason"]), true
				t.message = fmt.Sprintf("exit code %v %s", ended["exitCode"], text(ended["message"]))
				return t
			}
			if ready, _ := s["ready"].(bool); !ready && list == "containerStatuses" {
				t.rank, t.reason, t.logs = 3, "Unready", true
				unready = &t
			}
		}
	}
	if f := condition(pod, "PodScheduled"); f.status == "False" {
		return trouble{pod: pod, rank: 2, reason: f.reason, message: f.message}
	}
	switch {
	case creating != nil:
		return *creating
	case unready != nil:
		return *unready
	}
	phase, _, _ := unstructured.NestedString(pod.Object, "status", "phase")
	return trouble{pod: pod, rank: 5, reason: cmp.Or(phase, "Pending")}
}

// crash adds how a container ended the last time.
func crash(status map[string]any, message string) string {
	ended, ok, _ := unstructured.NestedMap(status, "lastState", "terminated")
	if !ok {
		return message
	}
	return fmt.Sprintf("%s (it ended with exit code %v, %s)", message, ended["exitCode"], text(ended["reason"]))
}

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Pod has the fields of a Pod that matter to redirection.
type Pod struct {
	Metadata struct {
		Name              string            `json:"name"`
		Namespace         string            `json:"namespace"`
		UID               string            `json:"uid"`
		ResourceVersion   string            `json:"resourceVersion"`
		DeletionTimestamp string            `json:"deletionTimestamp"`
		Labels            map[string]string `json:"labels"`
		Annotations       map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		HostNetwork     bool        `json:"hostNetwork"`
		InitContainers  []Container `json:"initContainers"`
		Containers      []Container `json:"containers"`
		SecurityContext Security    `json:"securityContext"`
	} `json:"spec"`
	Status struct {
		InitContainerStatuses []ContainerStatus `json:"initContainerStatuses"`
	} `json:"status"`
}

// Container is one of a Pod's containers.
type Container struct {
	Name            string   `json:"name"`
	Args            []string `json:"args"`
	Env             []EnvVar `json:"env"`
	SecurityContext Security `json:"securityContext"`
}

// EnvVar is a variable; Value is empty for one that is set by reference.
type EnvVar struct{ Name, Value string }

// Security is who a container, or all containers of a Pod, run as.
type Security struct {
	RunAsUser  *int64 `json:"runAsUser"`
	RunAsGroup *int64 `json:"runAsGroup"`
}

// ContainerStatus is how far a container is.
type ContainerStatus struct {
	Name      string `json:"name"`
	State     State  `json:"state"`
	LastState State  `json:"lastState"`
}

// State has one field set at most.
type State struct {
	Waiting    *struct{}                 `json:"waiting"`
	Terminated *struct{ ExitCode int32 } `json:"terminated"`
}

func podPath(namespace, name string) string {
	return fmt.Sprintf("/api/v1/namespaces/%s/pods/%s", url.PathEscape(namespace), url.PathEscape(name))
}

// Pod reads a Pod.
func (c *Client) Pod(ctx context.Context, namespace, name string) (*Pod, error) {
	out := &Pod{}
	return out, c.Do(ctx, http.MethodGet, podPath(namespace, name), nil, "", nil, out)
}

// DeletePod deletes a Pod, unless another one has its name now.
func (c *Client) DeletePod(ctx context.Context, p *Pod) error {
	options := map[string]any{"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": map[string]string{"uid": p.Metadata.UID}}
	return c.Do(ctx, http.MethodDelete, podPath(p.Metadata.Namespace, p.Metadata.Name), nil, "application/json", options, nil)
}

// LabelPod gives a Pod a label, by its status: the right to change that is a smaller one.
func (c *Client) LabelPod(ctx context.Context, p *Pod, key, value string) error {
	patch := map[string]any{"metadata": map[string]any{"uid": p.Metadata.UID, "labels": map[string]string{key: value}}}
	return c.Do(ctx, http.MethodPatch, podPath(p.Metadata.Namespace, p.Metadata.Name)+"/status", nil, "application/merge-patch+json", patch,
		nil)
}

// Report writes an event about a Pod. kind is Normal or Warning.
func (c *Client) Report(ctx context.Context, p *Pod, kind, reason, message, host string) error {
	now := time.Now().UTC().Format(time.RFC3339)
	event := map[string]any{
		"apiVersion": "v1", "kind": "Event", "type": kind, "reason": reason, "message": message, "firstTimestamp": now, "lastTimestamp": now,
		"count":    1,
		"metadata": map[string]string{"generateName": p.Metadata.Name + ".", "namespace": p.Metadata.Namespace},
		"involvedObject": map[string]string{"apiVersion": "v1", "kind": "Pod", "namespace": p.Metadata.Namespace, "name": p.Metadata.Name,
			"uid": p.Metadata.UID},
		"source": map[string]string{"component": "fairlead-cni", "host": host},
	}
	return c.Do(ctx, http.MethodPost, "/api/v1/namespaces/"+url.PathEscape(p.Metadata.Namespace)+"/events", nil, "application/json", event,
		nil)
}

// FollowPods calls f with every Pod of a node, and with each again when it changes. It returns when the API server ends
// the watch, which it does after minutes, or with an error; ready is called after the first list.
func (c *Client) FollowPods(ctx context.Context, node string, ready func(), f func(*Pod)) error {
	query := url.Values{"fieldSelector": {"spec.nodeName=" + node}}
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []*Pod `json:"items"`
	}
	query.Set("resourceVersion", "0") // from the API server's cache
	if err := c.Do(ctx, http.MethodGet, "/api/v1/pods", query, "", nil, &list); err != nil {
		return err
	}
	for _, p := range list.Items {
		f(p)
	}
	ready()
	query.Set("resourceVersion", list.Metadata.ResourceVersion)
	query.Set("watch", "true")
	query.Set("timeoutSeconds", strconv.Itoa(int(watchFor.Seconds())))
	ctx, cancel := context.WithTimeout(ctx, watchFor+answersWithin)
	defer cancel()
	stream, err := c.send(ctx, http.MethodGet, "/api/v1/pods", query, "", nil)
	if err != nil {
		return err
	}
	defer stream.Close()
	decoder := json.NewDecoder(stream)
	for {
		var event struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		if err := decoder.Decode(&event); err != nil {
			return nil //nolint:nilerr // the stream has ended, as it does: the caller begins again
		}
		switch event.Type {
		case "ADDED", "MODIFIED":
			p := &Pod{}
			if err := json.Unmarshal(event.Object, p); err != nil {
				return fmt.Errorf("a Pod of Kubernetes' API: %w", err)
			}
			f(p)
		case "ERROR": // what was listed is too old
			return nil
		}
	}
}

// taint is a Node's; fields that are not known here are kept.
type taint = map[string]any

// Untaint removes the taints with a key from a node, and reports whether it had one.
func (c *Client) Untaint(ctx context.Context, node, key string) (bool, error) {
	path := "/api/v1/nodes/" + url.PathEscape(node)
	var n struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Spec struct {
			Taints []taint `json:"taints"`
		} `json:"spec"`
	}
	if err := c.Do(ctx, http.MethodGet, path, nil, "", nil, &n); err != nil {
		return false, err
	}
	kept := []taint{}
	for _, t := range n.Spec.Taints {
		if t["key"] != key {
			kept = append(kept, t)
		}
	}
	if len(kept) == len(n.Spec.Taints) {
		return false, nil
	}
	// With the version that was read, so that another's change of the taints is not undone.
	patch := map[string]any{"metadata": map[string]string{"resourceVersion": n.Metadata.ResourceVersion},
		"spec": map[string]any{"taints": kept}}
	return true, c.Do(ctx, http.MethodPatch, path, nil, "application/merge-patch+json", patch, nil)
}

// DaemonSetGone reports whether a DaemonSet is being deleted or is no more.
func (c *Client) DaemonSetGone(ctx context.Context, namespace, name string) (bool, error) {
	var d struct {
		Metadata struct {
			DeletionTimestamp string `json:"deletionTimestamp"`
		} `json:"metadata"`
	}
	path := fmt.Sprintf("/apis/apps/v1/namespaces/%s/daemonsets/%s", url.PathEscape(namespace), url.PathEscape(name))
	err := c.Do(ctx, http.MethodGet, path, nil, "", nil, &d)
	if Gone(err) || Denied(err) { // who may not ask any more belongs to an installation that is being removed
		return true, nil
	}
	return d.Metadata.DeletionTimestamp != "", err
}

package inject

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// defaultProxyID is the proxy's user and group where no namespace says others.
const defaultProxyID = 1337

// Annotations by which OpenShift allots users and groups to a namespace.
const (
	uidRangeAnnotation = "openshift.io/sa.scc.uid-range"
	groupsAnnotation   = "openshift.io/sa.scc.supplemental-groups"
)

// proxyUser returns the proxy's user and group: the last ones that OpenShift allots to the namespace, so that none of
// the application's is excepted from redirection.
func proxyUser(ns *corev1.Namespace) (uid, gid int64) {
	uid, gid = defaultProxyID, defaultProxyID
	if ns == nil {
		return uid, gid
	}
	if last, ok := lastOfRange(ns.Annotations[uidRangeAnnotation]); ok {
		uid = last
	}
	groups, ok := ns.Annotations[groupsAnnotation]
	if !ok {
		groups = ns.Annotations[uidRangeAnnotation]
	}
	var first int64
	for i, text := range strings.Split(groups, ",") {
		last, ok := lastOfRange(text)
		if !ok {
			return uid, gid
		}
		if i == 0 {
			first = last
		}
	}
	return uid, first
}

// warnProxyUser warns about containers of the application that run as the proxy's user or group.
func (in *injection) warnProxyUser() {
	for _, text := range Bypassing(in.request.Pod, in.request.Namespace) {
		in.warn("%s", text)
	}
}

// Bypassing names the containers of an application that run as the proxy's user or group, whose traffic is not
// redirected, with what to do. The namespace may be nil.
func Bypassing(pod *corev1.Pod, ns *corev1.Namespace) (list []string) {
	uid, gid := proxyUser(ns)
	ofPod := pod.Spec.SecurityContext
	if ofPod == nil {
		ofPod = &corev1.PodSecurityContext{}
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if c.Name == proxyContainer {
			continue
		}
		user, group := ofPod.RunAsUser, ofPod.RunAsGroup
		if own := c.SecurityContext; own != nil {
			user, group = cmp.Or(own.RunAsUser, user), cmp.Or(own.RunAsGroup, group)
		}
		switch {
		case user != nil && *user == uid:
			list = append(list, fmt.Sprintf(
				"container %s has runAsUser %d, the proxy's user: what it sends passes the proxy by; run it as another user", c.Name, uid))
		case group != nil && *group == gid:
			list = append(list, fmt.Sprintf(
				"container %s has runAsGroup %d, the proxy's group: what it sends passes the proxy by; run it with another group", c.Name, gid))
		}
	}
	return list
}

// withoutAllotted returns the Pod without the user and group of its own istio-proxy container, where OpenShift has
// given every container of the Pod the same user: redirection would except the application's traffic too. A user that
// differs from the application's is its owner's wish, and stays.
func withoutAllotted(pod *corev1.Pod, ns *corev1.Namespace) *corev1.Pod {
	if ns == nil || ns.Annotations[uidRangeAnnotation] == "" {
		return pod
	}
	own := anyContainer(pod, proxyContainer)
	if own == nil || own.SecurityContext == nil || own.SecurityContext.RunAsUser == nil {
		return pod
	}
	same := func(c corev1.Container) bool {
		return c.Name != proxyContainer && c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil &&
			*c.SecurityContext.RunAsUser == *own.SecurityContext.RunAsUser
	}
	if !slices.ContainsFunc(pod.Spec.Containers, same) && !slices.ContainsFunc(pod.Spec.InitContainers, same) {
		return pod
	}
	pod = pod.DeepCopy()
	own = anyContainer(pod, proxyContainer)
	own.SecurityContext.RunAsUser, own.SecurityContext.RunAsGroup = nil, nil
	return pod
}

// lastOfRange reads START/SIZE or START-END.
func lastOfRange(text string) (int64, bool) {
	sep := "-"
	if strings.Contains(text, "/") {
		sep = "/"
	}
	a, b, ok := strings.Cut(text, sep)
	start, err1 := strconv.ParseUint(strings.TrimSpace(a), 10, 32)
	end, err2 := strconv.ParseUint(strings.TrimSpace(b), 10, 32)
	if !ok || err1 != nil || err2 != nil {
		return 0, false
	}
	if sep == "/" {
		end = start + end - 1
	}
	return int64(uint32(end)), true //nolint:gosec // users have 32 bits
}

package clustercheck

import (
	"context"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/services/installer/internal/kube"
)

// ranges are addresses that a cluster gives: prefixes, or where nothing tells them, single addresses that are in use.
type ranges []netip.Prefix

func (r *ranges) add(text string) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		ip, ipErr := netip.ParseAddr(text)
		if ipErr != nil {
			return
		}
		p = netip.PrefixFrom(ip, ip.BitLen())
	}
	if p = p.Masked(); !slices.Contains(*r, p) {
		*r = append(*r, p)
	}
}

// overlap finds two ranges that share addresses.
func (r ranges) overlap(o ranges) (a, b netip.Prefix, found bool) {
	// Sorted, what overlaps a prefix is beside it: there may be thousands of single addresses.
	type of struct {
		netip.Prefix
		second bool
	}
	all := make([]of, 0, len(r)+len(o))
	for _, p := range r {
		all = append(all, of{p, false})
	}
	for _, p := range o {
		all = append(all, of{p, true})
	}
	slices.SortFunc(all, func(x, y of) int {
		if c := x.Addr().Compare(y.Addr()); c != 0 {
			return c
		}
		return x.Bits() - y.Bits()
	})
	var open []of // those that may contain what follows
	for _, p := range all {
		open = slices.DeleteFunc(open, func(x of) bool { return !x.Overlaps(p.Prefix) })
		for _, x := range open {
			if x.second != p.second {
				if p.second {
					return x.Prefix, p.Prefix, true
				}
				return p.Prefix, x.Prefix, true
			}
		}
		open = append(open, p)
	}
	return a, b, false
}

// readPodRanges reads the ranges that Nodes give to Pods; where they name none, the addresses of Pods.
func (f *Facts) readPodRanges(ctx context.Context) error {
	for o := (metav1.ListOptions{Limit: kube.Page}); ; {
		list, err := f.API.CoreV1().Nodes().List(ctx, o)
		if err != nil {
			return err
		}
		for i := range list.Items {
			spec := &list.Items[i].Spec
			for _, cidr := range append(slices.Clone(spec.PodCIDRs), spec.PodCIDR) {
				f.pods.add(cidr)
			}
		}
		if o.Continue = list.Continue; o.Continue == "" {
			break
		}
	}
	if len(f.pods) > 0 {
		return nil
	}
	return kube.EachPod(ctx, f.API, "", "", func(p *corev1.Pod) error {
		if !p.Spec.HostNetwork {
			for _, ip := range p.Status.PodIPs {
				f.pods.add(ip.IP)
			}
		}
		return nil
	})
}

// readServiceRanges reads the ranges of ClusterIPs; of an API server that does not tell them, the ones in use count,
// which readServices has read.
func (f *Facts) readServiceRanges(ctx context.Context) error {
	var list networkingv1.ServiceCIDRList
	raw, err := f.API.Discovery().RESTClient().Get().AbsPath("/apis/networking.k8s.io/v1/servicecidrs").DoRaw(ctx)
	if apierrors.IsNotFound(err) {
		for _, s := range f.services {
			for _, ip := range s.vips {
				f.vips.add(ip)
			}
		}
		return nil
	}
	if err != nil {
		return err
	}
	if err := unmarshal(raw, &list); err != nil {
		return err
	}
	for i := range list.Items {
		for _, cidr := range list.Items[i].Spec.CIDRs {
			f.vips.add(cidr)
		}
	}
	return nil
}

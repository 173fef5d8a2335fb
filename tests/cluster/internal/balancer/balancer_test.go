package balancer

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"fairlead.dev/pkg/testkit"
)

var pool = netip.MustParsePrefix("192.0.2.252/30") // three addresses: .253 to .255

// service is a LoadBalancer that is so many seconds old.
func service(name string, age int, asked, has string) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name),
			CreationTimestamp: metav1.NewTime(time.Unix(int64(1000-age), 0))},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerIP: asked},
	}
	if has != "" {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: has}}
	}
	return s
}

func TestAddressesAreGivenKeptAndRefused(t *testing.T) {
	inside := service("inside", 9, "", "")
	inside.Spec.Type = corev1.ServiceTypeClusterIP
	others := service("others", 9, "", "")
	others.Spec.LoadBalancerClass = new(string)
	type list = []*corev1.Service
	for name, c := range map[string]struct {
		services         list
		changed, refused string
	}{
		"the oldest first":     {list{service("b", 1, "", ""), service("a", 2, "", "")}, "a=192.0.2.253 b=192.0.2.254", ""},
		"who has one keeps it": {list{service("a", 2, "", ""), service("b", 1, "", "192.0.2.253")}, "a=192.0.2.254", ""},
		"of two with the same the older keeps it": {
			list{service("a", 2, "", "192.0.2.253"), service("b", 1, "", "192.0.2.253")}, "b=192.0.2.254", "",
		},
		"one of another range is replaced": {list{service("a", 2, "", "198.51.100.1")}, "a=192.0.2.253", ""},
		"who asks gets what it asks for":   {list{service("a", 2, "192.0.2.255", "")}, "a=192.0.2.255", ""},
		"who asks comes before who has it": {
			list{service("a", 2, "", "192.0.2.253"), service("b", 1, "192.0.2.253", "")}, "b=192.0.2.253 a=192.0.2.254", "",
		},
		"of two who ask for one the older has it": {
			list{service("b", 1, "192.0.2.253", ""), service("a", 2, "192.0.2.253", "")},
			"a=192.0.2.253", "b is the address of Service shop/a",
		},
		"an address outside is refused": {
			list{service("a", 2, "192.0.2.10", "")}, "", `a "192.0.2.10" is no address of 192.0.2.252/30`,
		},
		"what is no address is refused":          {list{service("a", 2, "x", "")}, "", `a "x" is no address`},
		"who asks for another loses what it had": {list{service("a", 2, "192.0.2.10", "192.0.2.253")}, "a=", "a is no address"},
		"none is left": {
			list{service("a", 4, "", ""), service("b", 3, "", ""), service("c", 2, "", ""), service("d", 1, "", "")},
			"a=192.0.2.253 b=192.0.2.254 c=192.0.2.255", "d all addresses",
		},
		"Services of other kinds are left alone": {list{inside, others}, "", ""},
		"nothing changes where everything is right": {
			list{service("a", 2, "", "192.0.2.254"), service("b", 2, "192.0.2.253", "192.0.2.253")}, "", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			changed, refused := assign(pool, c.services)
			var got []string
			for _, s := range changed {
				ip := ""
				if list := s.Status.LoadBalancer.Ingress; len(list) > 0 {
					ip = list[0].IP
				}
				got = append(got, s.Name+"="+ip)
			}
			if got := strings.Join(got, " "); got != c.changed {
				t.Errorf("changed are %q, want %q", got, c.changed)
			}
			who, why, _ := strings.Cut(c.refused, " ")
			if c.refused == "" && len(refused) > 0 || c.refused != "" &&
				(len(refused) != 1 || refused[0].service.Name != who || !strings.Contains(refused[0].why, why)) {
				t.Errorf("refused are %v, want %q", refused, c.refused)
			}
		})
	}
}

func TestServicesGetAddressesAndEventsInACluster(t *testing.T) {
	client := fake.NewClientset(service("a", 2, "", ""))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, client, pool) }()
	t.Cleanup(func() {
		stop()
		testkit.NoError(t, <-ended)
	})
	hasAddress := func(name, want string) {
		t.Helper()
		testkit.Eventually(t, testkit.Patience, func() error {
			s, err := client.CoreV1().Services("shop").Get(t.Context(), name, metav1.GetOptions{})
			if err == nil && has(s).String() != want {
				err = fmt.Errorf("Service %s has %v, want %s", name, s.Status.LoadBalancer.Ingress, want)
			}
			return err
		})
	}
	hasAddress("a", "192.0.2.253")
	for _, s := range []*corev1.Service{service("b", 1, "", ""), service("c", 1, "203.0.113.1", "")} {
		_, err := client.CoreV1().Services("shop").Create(t.Context(), s, metav1.CreateOptions{})
		testkit.NoError(t, err)
	}
	hasAddress("b", "192.0.2.254")
	testkit.Eventually(t, testkit.Patience, func() error {
		events, err := client.CoreV1().Events("shop").List(t.Context(), metav1.ListOptions{})
		if err == nil && (len(events.Items) != 1 || events.Items[0].InvolvedObject.Name != "c" ||
			events.Items[0].Type != corev1.EventTypeWarning) {
			err = fmt.Errorf("Events are %v, want one warning about Service c", events.Items)
		}
		return err
	})
	// The address of one that goes is free for the next.
	testkit.NoError(t, client.CoreV1().Services("shop").Delete(t.Context(), "a", metav1.DeleteOptions{}))
	_, err := client.CoreV1().Services("shop").Create(t.Context(), service("d", 0, "192.0.2.253", ""), metav1.CreateOptions{})
	testkit.NoError(t, err)
	hasAddress("d", "192.0.2.253")
}

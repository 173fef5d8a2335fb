package injector

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"

	"fairlead.dev/tests/internal/wait"
)

const (
	// leastRate is of Pods injected in a second of processor time, and mostLatency of 99 % of the answers at half of
	// that rate for each processor.
	leastRate   = 200
	mostLatency = 50 * time.Millisecond
)

// TestRateAndLatency holds what the injector does over HTTPS, on the machine that it shares with the API server, the
// callers and whatever else runs.
func TestRateAndLatency(t *testing.T) {
	r := newRig(t)
	r.namespace("shop", nil)
	r.start()
	roots := x509.NewCertPool()
	roots.AddCert(r.ca.Cert)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, MaxIdleConnsPerHost: 32,
		ForceAttemptHTTP2: true}}
	p := pod("reviews-v1", func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}
		p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}}}
		p.Spec.Volumes = []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	})
	p.APIVersion, p.Kind, p.Namespace = "v1", "Pod", "shop"
	object, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "u", Operation: admissionv1.Create, Namespace: "shop", Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
			Object: k8sruntime.RawExtension{Raw: object},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ask := func() (time.Duration, error) {
		began := time.Now()
		resp, err := client.Post("https://"+r.address+"/inject?timeout=10s", "application/json", bytes.NewReader(body))
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close() //nolint:errcheck // a test
		answer, err := io.ReadAll(resp.Body)
		took := time.Since(began)
		var review admissionv1.AdmissionReview
		if err == nil {
			err = json.Unmarshal(answer, &review)
		}
		if err != nil || resp.StatusCode != http.StatusOK || review.Response == nil || !review.Response.Allowed ||
			!bytes.Contains(review.Response.Patch, []byte("istio-proxy")) {
			return 0, fmt.Errorf("status %d, %w: %.300s", resp.StatusCode, err, answer)
		}
		return took, nil
	}
	if _, err := ask(); err != nil {
		t.Fatal(err)
	}

	// What else runs on this machine must not decide. Without the privilege the test tries as it is.
	for _, pid := range []int{os.Getpid(), r.process.PID()} {
		if err := prefer(pid); err != nil {
			t.Logf("no priority for process %d: %v", pid, err)
		}
	}
	// What else uses a processor's caches costs processor time, too.
	rate := 0.0
	for try := 0; try < 3 && rate < leastRate; try++ {
		rate = max(rate, r.rate(ask))
	}
	if rate < leastRate {
		t.Errorf("%.0f Pods a second and processor, want %d", rate, leastRate)
	}

	// A machine that is busy with something else gets several tries, and both processes the time for which it keeps a
	// thread waiting that has nothing to do but wake up.
	for try := range 12 {
		var late time.Duration
		during := 3 * time.Second
		var watching sync.WaitGroup
		watching.Go(func() { late = lateness(during) })
		tail := r.tailAt(ask, leastRate/2*runtime.NumCPU(), during)
		watching.Wait()
		t.Logf("try %d: p99 %s at %d a second; a thread wakes up late by %s", try+1, tail.Round(100*time.Microsecond),
			leastRate/2*runtime.NumCPU(), late.Round(100*time.Microsecond))
		if tail <= mostLatency+2*late {
			return
		}
	}
	t.Errorf("p99 is never within %s at half of the rate", mostLatency)
}

// rate is how many Pods are injected in a second of processor time, while 8 callers ask for as many as they can.
func (r *rig) rate(ask func() (time.Duration, error)) float64 {
	r.t.Helper()
	const pods, callers = 800, 8
	before, began := r.processorTime(), time.Now()
	if err := wait.Each(make([]struct{}, callers), func(struct{}) error {
		for range pods / callers {
			if _, err := ask(); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		r.t.Fatal(err)
	}
	cost := r.processorTime() - before
	rate := float64(pods) / cost.Seconds()
	r.t.Logf("%d Pods in %s, for %s of processor time: %.0f a second and processor, of %d processors", pods,
		time.Since(began).Round(time.Millisecond), cost, rate, runtime.NumCPU())
	return rate
}

// lateness is by how much threads of this process wake up too late, in 99 of 100 cases at most.
func lateness(during time.Duration) time.Duration {
	var all []time.Duration
	for began := time.Now(); time.Since(began) < during; {
		slept := time.Now()
		time.Sleep(time.Millisecond)
		all = append(all, time.Since(slept)-time.Millisecond)
	}
	slices.Sort(all)
	return all[len(all)*99/100]
}

// tailAt asks at a rate, whether answers come or not, and returns what 99 % of the answers take at most.
func (r *rig) tailAt(ask func() (time.Duration, error), rate int, during time.Duration) time.Duration {
	r.t.Helper()
	var mu sync.Mutex
	var all []time.Duration
	var running sync.WaitGroup
	ticks := time.NewTicker(time.Second / time.Duration(rate))
	defer ticks.Stop()
	for range int(during.Seconds()) * rate {
		<-ticks.C
		running.Go(func() {
			took, err := ask()
			if err != nil {
				took = time.Minute
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took)
		})
	}
	running.Wait()
	slices.Sort(all)
	return all[len(all)*99/100]
}

// prefer gives the threads of a process, and those that they start, the highest priority of a usual process.
func prefer(pid int) error {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return err
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err == nil {
			err = syscall.Setpriority(syscall.PRIO_PROCESS, id, -20)
		}
		if err != nil && !errors.Is(err, syscall.ESRCH) { // a thread may have ended
			return err
		}
	}
	return nil
}

// processorTime is that of the injector's process until now. The kernel counts it in hundredths of a second.
func (r *rig) processorTime() time.Duration {
	r.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.process.PID()))
	if err != nil {
		r.t.Fatal(err)
	}
	// Fields after the command's name, which is in parentheses; user and system time are the 14th and 15th of all.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	ticks := 0
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			r.t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

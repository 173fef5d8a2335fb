package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// client sends requests through the gateway, over plain HTTP with keep-alive connections, as a browser does.
type client struct {
	base string
	http *http.Client
}

func newClient(url string) *client {
	return &client{base: strings.TrimSuffix(url, "/"), http: &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{MaxIdleConnsPerHost: 16},
	}}
}

// hop is one server of a request's chain and the caller that it saw.
type hop struct {
	Service string `json:"service"`
	Version string `json:"version"`
	Pod     string `json:"pod"`
	Caller  string `json:"caller"`
	Error   string `json:"error"`
}

// answer is the outcome of one request.
type answer struct {
	began, ended time.Time
	hops         []hop
	err          error
}

// version is the version of reviews that answered.
func (a answer) version() string {
	for _, h := range a.hops {
		if h.Service == "reviews" {
			return h.Version
		}
	}
	return ""
}

// maxBody bounds what is read of a response.
const maxBody = 1 << 20

// getChain requests the chain of servers behind a page. It fails if one of them did not answer.
func (c *client) getChain(ctx context.Context) answer {
	a := answer{began: time.Now()}
	a.hops, a.err = c.fetch(ctx)
	a.ended = time.Now()
	return a
}

func (c *client) fetch(ctx context.Context) ([]hop, error) {
	body, err := c.get(ctx, "/api/v1/products/0/chain")
	if err != nil {
		return nil, err
	}
	var chain struct {
		Hops []hop `json:"hops"`
	}
	if err := json.Unmarshal(body, &chain); err != nil {
		return nil, fmt.Errorf("the answer is no chain: %w", err)
	}
	return chain.Hops, nil
}

// get requests a path; another status than 200 is an error.
func (c *client) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return nil, err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", res.Status, strings.Join(strings.Fields(string(body[:min(len(body), 300)])), " "))
	}
	return body, nil
}

// traffic is a stream of requests from several callers, of which each waits for its answers.
type traffic struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	answers []answer
}

// callers is how many callers send traffic, pause how long each waits after an answer.
const (
	callers = 4
	pause   = 5 * time.Millisecond
)

// startTraffic starts traffic that runs until stop or the end of ctx.
func (c *client) startTraffic(ctx context.Context) *traffic {
	ctx, cancel := context.WithCancel(ctx)
	t := &traffic{cancel: cancel}
	for range callers {
		t.wg.Go(func() {
			for ctx.Err() == nil {
				// A request that was cut at the end would count as failed.
				a := c.getChain(context.WithoutCancel(ctx))
				t.mu.Lock()
				t.answers = append(t.answers, a)
				t.mu.Unlock()
				select {
				case <-ctx.Done():
				case <-time.After(pause):
				}
			}
		})
	}
	return t
}

// snapshot returns the answers so far, in the order of their requests' beginnings.
func (t *traffic) snapshot() []answer {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := slices.Clone(t.answers)
	slices.SortStableFunc(list, func(a, b answer) int { return a.began.Compare(b.began) })
	return list
}

// stop stops the traffic and returns all answers.
func (t *traffic) stop() []answer {
	t.cancel()
	t.wg.Wait()
	return t.snapshot()
}

// stopAfter stops the traffic after so many more answers, and returns all.
func (t *traffic) stopAfter(ctx context.Context, more int) []answer {
	count := len(t.snapshot()) + more
	_ = waitUntil(ctx, func() bool { return len(t.snapshot()) >= count })
	return t.stop()
}

// failures counts the failed answers, and lists each different error with its count.
func failures(list []answer) (count int, kinds []string) {
	byText := map[string]int{}
	for _, a := range list {
		if a.err != nil {
			count++
			byText[a.err.Error()]++
		}
	}
	for text, n := range byText {
		kinds = append(kinds, fmt.Sprintf("%d x %s", n, text))
	}
	slices.Sort(kinds)
	return count, kinds
}

// percentile returns the duration that the share of successful answers did not exceed.
func percentile(list []answer, share float64) time.Duration {
	var times []time.Duration
	for _, a := range list {
		if a.err == nil {
			times = append(times, a.ended.Sub(a.began))
		}
	}
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[min(int(share*float64(len(times))), len(times)-1)]
}

// firstSettled returns the first answer from which on all are of the version; ok is false if these are fewer than
// least.
func firstSettled(list []answer, version string, least int) (a answer, ok bool) {
	i := len(list)
	for i > 0 && list[i-1].err == nil && list[i-1].version() == version {
		i--
	}
	if len(list)-i < least {
		return answer{}, false
	}
	return list[i], true
}

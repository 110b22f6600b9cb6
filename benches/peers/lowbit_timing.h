// How every contender of lowbit.py is driven: it is started with a number of threads, reads lines such as
// "ternary 1 2560 6912 hot 0.1" (weights, rows, K, N, from where weights come, seconds) and answers each with the least and
// the median time of one product in microseconds, or with "-" where it has no such product.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

struct Case {
    std::string weights, from;
    long m, k, n;
};

// How many products one pass has: as many copies of the weights as are larger than any cache, or the same weights a few times.
inline int products(const Case & c, size_t weight_bytes) {
    return c.from == "hot" ? 8 : (int) ((256u << 20) / weight_bytes + 1);
}

// `prepare` gives a pass and how many products it has; a pass that is empty stands for a product that there is not.
using Pass = std::function<void()>;
inline int serve(const std::function<std::pair<Pass, int>(const Case &)> & prepare) {
    using clock = std::chrono::steady_clock;
    std::string last;
    std::pair<Pass, int> made;
    Case c;
    double seconds;
    while (std::cin >> c.weights >> c.m >> c.k >> c.n >> c.from >> seconds) {
        const std::string key = c.weights + " " + std::to_string(c.m) + " " + std::to_string(c.k) + " " + std::to_string(c.n) + c.from;
        if (key != last) {
            made = {};
            made = prepare(c);
            last = key;
        }
        if (!made.first) {
            std::puts("-");
            std::fflush(stdout);
            continue;
        }
        made.first();
        std::vector<double> times;
        const auto began = clock::now();
        do {
            const auto start = clock::now();
            made.first();
            times.push_back(std::chrono::duration<double, std::micro>(clock::now() - start).count() / made.second);
        } while (std::chrono::duration<double>(clock::now() - began).count() < seconds);
        std::sort(times.begin(), times.end());
        std::printf("%.3f %.3f\n", times.front(), times[times.size() / 2]);
        std::fflush(stdout);
    }
    return 0;
}
